package hook

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"

	kubeevents "github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
)

// Events tell people what became of a pod.
type Events interface {
	// OnPod must not block.
	OnPod(pod kubeevents.Pod, reason kubeevents.Reason, format string, args ...any)
}

// Room is told which pods find no room on the node's GPUs, and which do.
type Room interface {
	// Refused and Granted must not block.
	Refused(pod pods.Ref, container, why string)
	Granted(pod pods.Ref)
}

func (c Container) ref() pods.Ref {
	return pods.Ref{UID: c.PodUID, Namespace: c.Namespace, Name: c.Pod}
}

// tell writes an Event about a container's pod.
func (h *Hook) tell(c Container, reason kubeevents.Reason, format string, args ...any) {
	if h.Events == nil {
		return
	}
	about := kubeevents.Pod{Namespace: c.Namespace, Name: c.Pod, UID: types.UID(c.PodUID)}
	// A static pod's mirror has another UID than the runtime knows.
	if pod, ok := h.Pods.Cached(c.ref()); ok {
		about.UID = pod.UID
	}
	h.Events.OnPod(about, reason, format, args...)
}

// tellRefusal writes an Event about a container that was refused. One whose
// pod could not be had says more of the API server than of the pod: kubelet's
// own event has to do.
func (h *Hook) tellRefusal(c Container, err error) {
	var refusal *RefusalError
	if errors.As(err, &refusal) && refusal.Reason != ReasonPodUnknown {
		h.tell(c, kubeevents.VGPURefused, "container %q: %v", refusal.Container, refusal.Err)
	}
	var noRoom *placement.NoRoomError
	if h.Room != nil && errors.As(err, &noRoom) {
		h.Room.Refused(c.ref(), c.Name, noRoom.Error())
	}
}

// tellGrant notes that a container found room.
func (h *Hook) tellGrant(c Container) {
	if h.Room != nil {
		h.Room.Granted(c.ref())
	}
}
