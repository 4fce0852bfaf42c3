package request

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Usable is the memory of a GPU, in bytes, that may be given to containers.
func Usable(g gpu.GPU, node config.Node) uint64 {
	reserved := node.ReservedMemoryMiB * MiB
	return g.MemoryBytes - min(reserved, g.MemoryBytes)
}

// Capacity is what a node's GPUs are worth in every enabled dialect, by
// resource name. Unhealthy GPUs are worth nothing. A resource that would be 0
// is left out: a 0 on the Node would fail running pods when kubelet restarts.
func Capacity(gpus []gpu.GPU, cfg config.Config) map[string]int64 {
	total := make(map[string]int64)
	for _, d := range enabled(cfg.Dialects, cfg.Node) {
		for _, g := range gpus {
			if !g.Healthy {
				continue
			}
			for name, n := range d.capacity(g, Usable(g, cfg.Node)) {
				if n > 0 {
					total[name] += n
				}
			}
		}
	}
	return total
}

// Used is what pods that have not ended hold of every enabled dialect's
// resources, as scheduler and kubelet count: what is patched on the Node must
// never be less.
func Used(pods []*corev1.Pod, cfg config.Dialects) map[string]int64 {
	total := make(map[string]int64)
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for name, n := range Units(pod, cfg) {
			total[name] += n
		}
	}
	return total
}

// Units is what one pod asks of every enabled dialect's resources: the larger
// of what its app containers and sidecars need together, and of what any init
// container needs beside the sidecars that were started before it.
func Units(pod *corev1.Pod, cfg config.Dialects) map[string]int64 {
	need := make(map[string]int64)
	for _, d := range enabled(cfg, config.Node{}) {
		for _, name := range d.resources() {
			if n := podUnits(&pod.Spec, corev1.ResourceName(name)); n > 0 {
				need[name] = n
			}
		}
	}
	return need
}

func podUnits(spec *corev1.PodSpec, name corev1.ResourceName) int64 {
	var running, peak int64
	for _, c := range spec.InitContainers {
		n := limitOf(c.Resources, name)
		peak = max(peak, running+n)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			running += n
		}
	}
	for _, c := range spec.Containers {
		running += limitOf(c.Resources, name)
	}
	return max(peak, running)
}

// limitOf is 0 for what FromPod refuses: such a container never runs.
func limitOf(res corev1.ResourceRequirements, name corev1.ResourceName) int64 {
	n, err := units(res.Limits[name])
	if err != nil {
		return 0
	}
	return n
}
