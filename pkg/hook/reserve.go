package hook

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/pkg/volcano"
)

// Reserve gives the containers of a pod their GPUs ahead of their creation, as
// an image may have to be pulled first: a scheduler that has chosen the GPUs
// waits to hear of it.
func (h *Hook) Reserve(pod *corev1.Pod) error {
	// No scheduler places static pods, and a forged mirror would take their GPUs.
	if pods.IsMirror(pod) {
		return nil
	}
	uid := string(pod.UID)
	if h.Ledger.Holds(uid) {
		return nil // as nearly always
	}
	asked, err := request.Read(pod, h.Config)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// A pod that ended just now would have been freed already.
	if !h.synchronized || !h.Pods.Alive(uid) || h.Ledger.Holds(uid) {
		return nil
	}
	if asked, err = volcano.Obey(asked, pod, h.GPUs(), h.Config); err != nil {
		return err
	}
	for _, c := range asked.Containers {
		if !asks(asked, c.Name) {
			continue
		}
		if _, err := h.Ledger.Place(asked, c.Name); err != nil {
			return err
		}
		delete(h.reserved, uid)
		return h.reserve(uid, h.Ledger.Pod(uid))
	}
	return nil
}

// reserve writes down what the containers of a pod were given together, unless that was
// done: should the agent die now, nobody else gets their room. h.mu is held.
func (h *Hook) reserve(podUID string, all []placement.Allocation) error {
	if h.reserved[podUID] && h.Store.Reserved(podUID) {
		return nil
	}
	if err := h.Store.Reserve(podUID, all); err != nil {
		return err
	}
	h.reserved[podUID] = true
	return nil
}

// Held are the allocations of a pod, in its spec's order.
func (h *Hook) Held(podUID string) []placement.Allocation { return h.Ledger.Pod(podUID) }
