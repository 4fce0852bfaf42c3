// SPDX-License-Identifier: Apache-2.0

package request

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Usable returns the allocatable memory of a GPU, in bytes.
func Usable(g gpu.GPU, cfg config.Config) uint64 {
	reserved := cfg.Node.ReservedMemoryMiB * MiB
	if cfg.Sharing.ByMPS(g.UUID) {
		reserved += cfg.Sharing.MPS.ReservedMemoryMiB * MiB
	}
	return g.MemoryBytes - min(reserved, g.MemoryBytes)
}

// Left is the remaining capacity of a GPU.
type Left struct {
	Memory     uint64 // bytes
	ComputePPM uint32
	// SlotsTaken is the number of slots that containers of dialects that count GPUs hold.
	SlotsTaken int
	// Held reports whether a container is on the GPU.
	Held bool
	// Common reports whether a container holds the GPU's memory in common.
	Common bool
	// Bounded reports whether at most Containers more containers can use the GPU.
	Bounded    bool
	Containers int
}

func (l Left) percent() int64 { return int64(l.ComputePPM / ppmPerPercent) }

// counted returns the slots and MiB left for dialects that count GPUs, if slotsPerGPU containers
// may share a GPU. If no slot or no MiB is left, counted returns 0 for slots and MiB, since slots
// without memory are unusable.
func (l Left) counted(slotsPerGPU int) (slots, mib int64) {
	mib = int64(l.Memory / MiB)
	slots = min(int64(max(slotsPerGPU-l.SlotsTaken, 0)), mib)
	if l.Bounded {
		slots = min(slots, int64(l.Containers))
	}
	if slots == 0 {
		return 0, 0
	}
	return slots, mib
}

// Capacity returns the capacity of a node's GPUs in every enabled dialect, by resource name.
// Capacity ignores unhealthy GPUs. Capacity omits a resource whose amount is 0: a 0 on the Node
// would fail running pods when kubelet restarts.
func Capacity(gpus []gpu.GPU, cfg config.Config) map[string]int64 {
	all := make(map[string]Left)
	for _, g := range gpus {
		if g.Healthy {
			all[g.UUID] = Left{Memory: Usable(g, cfg), ComputePPM: Whole}
		}
	}
	return Free(gpus, all, cfg)
}

// Free returns the remaining capacity of a node's GPUs in the units of every enabled dialect, by
// resource name. Free ignores GPUs that are not in left. Free omits a resource whose amount is 0.
func Free(gpus []gpu.GPU, left map[string]Left, cfg config.Config) map[string]int64 {
	total := make(map[string]int64)
	for _, d := range enabled(cfg.Dialects, cfg.Node) {
		for _, g := range gpus {
			l, ok := left[g.UUID]
			if !ok {
				continue
			}
			for name, n := range d.worth(g, Usable(g, cfg), l) {
				if n > 0 {
					total[name] += n
				}
			}
		}
	}
	return total
}

// Asking returns the pods that have not ended and name a resource of an enabled dialect or a turn.
func Asking(pods []*corev1.Pod, cfg config.Dialects) []*corev1.Pod {
	ours := make(map[corev1.ResourceName]bool)
	for _, name := range countedNames(cfg) {
		ours[corev1.ResourceName(name)] = true
	}
	var asking []*corev1.Pod
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && namesAny(&pod.Spec, ours) {
			asking = append(asking, pod)
		}
	}
	return asking
}

func namesAny(spec *corev1.PodSpec, ours map[corev1.ResourceName]bool) bool {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Limits {
				if ours[name] {
					return true
				}
			}
		}
	}
	return false
}

// Names returns the resources of all enabled dialects.
func Names(cfg config.Dialects) []string {
	var all []string
	for _, d := range enabled(cfg, config.Node{}) {
		all = append(all, d.resources()...)
	}
	return all
}

// countedNames returns the resources of all enabled dialects and the pods' turns. Pods keep their
// turns if the mode of scheduling changes.
func countedNames(cfg config.Dialects) []string { return append(Names(cfg), FitTurn) }

// Used returns the amounts of turns and of every enabled dialect's resources that pods hold, as the
// scheduler and kubelet count the amounts. Used ignores pods that have ended. The Node's capacity
// must never be less than the amounts. A pod needs the larger of two amounts. The first amount is
// the sum of the app containers and sidecars. The second amount is the largest sum of an init
// container and its earlier sidecars.
func Used(pods []*corev1.Pod, cfg config.Dialects) map[string]int64 {
	total := make(map[string]int64)
	names := countedNames(cfg)
	for _, pod := range Asking(pods, cfg) {
		for _, name := range names {
			Sum(total, map[string]int64{name: podUnits(&pod.Spec, corev1.ResourceName(name))})
		}
	}
	return total
}

// Sum adds the usage of some pods to a total.
func Sum(total, more map[string]int64) {
	for name, n := range more {
		if n > 0 {
			total[name] = add(total[name], n)
		}
	}
}

// add adds two non-negative counts and saturates at the largest int64. Tenants may write any 63-bit
// amount into their pods, and a sum that overflows would count as zero.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func podUnits(spec *corev1.PodSpec, name corev1.ResourceName) int64 {
	var running, peak int64
	for _, c := range spec.InitContainers {
		n := limitOf(c.Resources, name)
		peak = max(peak, add(running, n))
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			running = add(running, n)
		}
	}
	for _, c := range spec.Containers {
		running = add(running, limitOf(c.Resources, name))
	}
	return max(peak, running)
}

// limitOf returns a container's amount of a resource, or 0 if FromPod refuses
// the amount. A refused container never runs.
func limitOf(res corev1.ResourceRequirements, name corev1.ResourceName) int64 {
	n, err := units(res.Limits[name])
	if err != nil {
		return 0
	}
	return n
}
