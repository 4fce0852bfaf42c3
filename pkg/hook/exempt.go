package hook

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// exempt reports whether a container that gets no part of a GPU is left as its image
// and its pod want it: in an exempt namespace one that is known to ask for nothing, and
// an agent anywhere.
func (h *Hook) exempt(c Container, asksNothing bool) bool {
	return asksNothing && slices.Contains(h.Config.Node.ExemptNamespaces, c.Namespace) || h.commands(c)
}

// commands reports whether a container commands the container runtime, as the agent does.
func (h *Hook) commands(c Container) bool {
	return reach.Commands(c.Devices, injected.Writable(c.Mounts), h.Config.NRI.SocketPath)
}

// asksNothing reports whether it is known what a container asks for, and whether that is
// nothing. One that was marked as exempt asked for nothing when it was created, when the
// pod could be had from the API server ahead of the watch.
func (h *Hook) asksNothing(c Container, read reader) (known, nothing bool) {
	pod, ok := h.Pods.Cached(c.ref())
	if !ok {
		return c.Exempted, c.Exempted
	}
	asked, err := read(pod, h.Config.Dialects)
	return true, err == nil && !asks(asked, c.Name)
}

// reader reads what a pod asks for.
type reader func(*corev1.Pod, config.Dialects) (request.Pod, error)

// readOnce returns a reader that reads each pod once. For each container of the node one is
// asked, and a tenant's pod may have hundreds.
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

// mark is what tells the guard, and the next agent, that a container was looked at.
func mark(as outcome) map[string]string {
	return map[string]string{layout.AdjustedAnnotation: string(as)}
}
