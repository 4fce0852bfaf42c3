// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Assigned reports whether Volcano's scheduler has chosen the pod's GPUs on this node. The
// scheduler may have chosen GPUs on another node before. If this node is locked, the scheduler
// binds the pod to this node without choosing again.
func Assigned(pod *corev1.Pod) bool {
	_, ids := pod.Annotations[IDs]
	_, bound := pod.Annotations[BindTime]
	return ids && bound && pod.Annotations[Node] == pod.Spec.NodeName
}

// Missed reports whether Volcano's scheduler has bound the pod to this node without choosing GPUs,
// and the node has not answered yet. Either the scheduler has not read the node's GPUs since its
// start, or the node was locked.
func Missed(pod *corev1.Pod, cfg config.Volcano) bool {
	_, group := pod.Annotations[Group]
	return group && !Assigned(pod) && !Settled(pod) && len(Asking(pod, cfg)) > 0
}

// Obey binds the GPUs that a pod requests in Volcano's dialect to the GPUs of the scheduler's
// assignment, if the pod has an assignment. The spec decides the amounts. Obey returns an error if the
// assignment differs from the spec, or if a share does not accept its GPU.
func Obey(asked request.Pod, pod *corev1.Pod, gpus []gpu.GPU, cfg config.Config) (request.Pod, error) {
	if !slices.ContainsFunc(asked.Containers, speaks) || !Assigned(pod) {
		return asked, nil
	}
	asked.Containers = slices.Clone(asked.Containers)
	for i, c := range asked.Containers {
		asked.Containers[i].Shares = slices.Clone(c.Shares)
	}
	if err := assign(asked.Containers, pod, gpus, cfg); err != nil {
		return request.Pod{}, fmt.Errorf("pod %s/%s: the agent cannot apply the assignment by Volcano's scheduler (%s): %w",
			pod.Namespace, pod.Name, IDs, err)
	}
	return asked, nil
}

func speaks(c request.Container) bool { return c.Dialect == request.DialectVolcano }

// assign binds the k-th container that Asking returns to the assignment's k-th entry.
func assign(containers []request.Container, pod *corev1.Pod, gpus []gpu.GPU, cfg config.Config) error {
	assignment, err := Parse(pod.Annotations[IDs])
	if err != nil {
		return err
	}
	asking := Asking(pod, cfg.Dialects.Volcano)
	if len(assignment) != max(len(asking), 1) {
		return fmt.Errorf("the annotation is for %d containers, and %d containers request GPUs", len(assignment), len(asking))
	}
	for k, name := range asking {
		i := slices.IndexFunc(containers, func(c request.Container) bool { return c.Name == name })
		if i < 0 {
			continue
		}
		if err := assignTo(&containers[i], assignment[k], gpus, cfg); err != nil {
			return fmt.Errorf("container %q: %w", name, err)
		}
	}
	return nil
}

// Asking returns the names of the containers to which Volcano's scheduler assigns GPUs, in order.
// Asking omits init containers, and containers that request only time, or only memory in percent.
func Asking(pod *corev1.Pod, cfg config.Volcano) []string {
	var names []string
	for _, c := range pod.Spec.Containers {
		_, number := c.Resources.Limits[corev1.ResourceName(cfg.Number)]
		_, memory := c.Resources.Limits[corev1.ResourceName(cfg.Memory)]
		if number || memory {
			names = append(names, c.Name)
		}
	}
	return names
}

// assignTo binds each share of a container to a GPU of the container's entry.
func assignTo(c *request.Container, devices []Device, gpus []gpu.GPU, cfg config.Config) error {
	var shares []request.Share
	if speaks(*c) {
		shares = c.Shares
	}
	if len(devices) != len(shares) {
		return fmt.Errorf("the annotation has %d GPUs, and the container requests %d", len(devices), len(shares))
	}
	for i, d := range devices {
		if slices.ContainsFunc(devices[:i], func(before Device) bool { return before.UUID == d.UUID }) {
			return fmt.Errorf("GPU %s is in the annotation twice", d.UUID)
		}
		k := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.UUID == d.UUID })
		if k < 0 {
			return fmt.Errorf("GPU %s is not in this node", d.UUID)
		}
		if err := bind(&shares[i], d, gpus[k], cfg); err != nil {
			return fmt.Errorf("GPU %s: %w", d.UUID, err)
		}
	}
	return nil
}

// bind binds a share to the assigned GPU. Like the scheduler, bind counts memory in percent in
// whole MiB, so that the sums of node and scheduler agree. If the scheduler's configuration lacks
// the name of the percentage, the scheduler has counted all of the GPU's memory. A container gets
// the amount that it requests, and never more.
func bind(share *request.Share, d Device, g gpu.GPU, cfg config.Config) error {
	if len(share.GPUs) > 0 && !slices.Contains(share.GPUs, d.UUID) {
		return fmt.Errorf("the pod's annotations allow %s only", strings.Join(share.GPUs, ", "))
	}
	if want := share.ComputePPM / (request.Whole / 100); d.Cores != want {
		return fmt.Errorf("the annotation has %d %% of the time, and the container requests %d %%", d.Cores, want)
	}
	want := share.Memory.Bytes / request.MiB
	if share.Memory.PPM != 0 {
		want = usableMiB(g, cfg) * uint64(share.Memory.PPM) / request.Whole
	}
	if d.MiB < want || d.MiB > want && share.Memory.PPM == 0 {
		return fmt.Errorf("the annotation has %d MiB, and the container requests %d MiB", d.MiB, want)
	}
	share.GPUs = []string{d.UUID}
	if share.Memory.PPM != request.Whole && share.Memory.PPM != 0 {
		share.Memory = request.Memory{Bytes: want * request.MiB}
	}
	return nil
}
