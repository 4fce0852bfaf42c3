// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// exempt reports whether the agent must not change a container without a part of a GPU. The
// exemption applies to an agent's container in any namespace. In an exempt namespace, the exemption
// applies to every container that is known to request no GPU.
func (h *Hook) exempt(c adjust.Container, asksNothing bool) bool {
	return asksNothing && slices.Contains(h.opts.Config.Node.ExemptNamespaces, c.Namespace) || h.commands(c)
}

// commands reports whether a container can control the container runtime, as the agent does.
func (h *Hook) commands(c adjust.Container) bool {
	return gpuaccess.Commands(c.Devices, ourfiles.Writable(c.Mounts), h.opts.Config.NRI.SocketPath)
}

// asksNothing reports whether a container's request is known, and whether it requests no GPU. If
// the watch has not delivered the pod, asksNothing relies on the mark of an exempt container.
func (h *Hook) asksNothing(c adjust.Container, read reader) (known, nothing bool) {
	pod, ok := h.opts.Pods.Cached(ref(c))
	if !ok {
		return c.Exempted, c.Exempted
	}
	asked, err := read(pod, h.opts.Config.Dialects)
	if err != nil {
		return true, h.namesNothing(c, pod)
	}
	return true, !asked.Asks(c.Name)
}

// reader parses a pod's GPU requests.
type reader func(*corev1.Pod, config.Dialects) (request.Pod, error)

// readOnce returns a reader that parses each pod once. The reader runs for each container
// of the node, and a tenant's pod may have hundreds of containers.
func readOnce() reader {
	type answer struct {
		asked request.Pod
		err   error
	}
	known := map[*corev1.Pod]answer{}
	return func(pod *corev1.Pod, cfg config.Dialects) (request.Pod, error) {
		a, ok := known[pod]
		if !ok {
			a.asked, a.err = request.FromPod(pod, cfg)
			known[pod] = a
		}
		return a.asked, a.err
	}
}

// mark returns the annotation by which the guard and the next agent recognize a processed
// container.
func mark(as outcome) map[string]string {
	return map[string]string{paths.AdjustedAnnotation: string(as)}
}
