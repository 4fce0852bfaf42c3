// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	kubeevents "github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// Events writes Kubernetes Events about pods.
type Events interface {
	// OnPod must not block.
	OnPod(pod kubeevents.Pod, reason kubeevents.Reason, format string, args ...any)
}

// Room records which pods found no room on the node's GPUs, and which did.
type Room interface {
	// Refused and Granted must not block.
	Refused(pod pods.Ref, container, why string)
	Granted(pod pods.Ref)
}

func ref(c adjust.Container) pods.Ref {
	return pods.Ref{UID: c.PodUID, Namespace: c.Namespace, Name: c.Pod}
}

// writeEvent writes an Event about a container's pod.
func (h *Hook) writeEvent(c adjust.Container, reason kubeevents.Reason, format string, args ...any) {
	if h.opts.Events == nil {
		return
	}
	about := kubeevents.Pod{Namespace: c.Namespace, Name: c.Pod, UID: types.UID(c.PodUID)}
	// The API server's UID of a static pod's mirror differs from the runtime's
	// UID.
	if pod, ok := h.opts.Pods.Cached(ref(c)); ok {
		about.UID = pod.UID
	}
	h.opts.Events.OnPod(about, reason, format, args...)
}

// reportRefusal writes an Event about a refused container. If the API server did not return the pod,
// reportRefusal writes no Event, and only kubelet's own event reports the refusal.
func (h *Hook) reportRefusal(c adjust.Container, err error) {
	var refusal *adjust.RefusalError
	if errors.As(err, &refusal) && refusal.Reason != adjust.ReasonPodUnknown {
		h.writeEvent(c, kubeevents.VGPURefused, "container %q: %v", refusal.Container, refusal.Err)
	}
	var noRoom *placement.NoRoomError
	if h.opts.Room != nil && errors.As(err, &noRoom) {
		h.opts.Room.Refused(ref(c), c.Name, noRoom.Error())
	}
}

// reportGrant records that a container found room.
func (h *Hook) reportGrant(c adjust.Container) {
	if h.opts.Room != nil {
		h.opts.Room.Granted(ref(c))
	}
}
