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
	if len(h.Ledger.Pod(uid)) > 0 {
		return nil // as nearly always
	}
	asked, err := request.Read(pod, h.Config)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// A pod that ended just now would have been freed already.
	if !h.synchronized || !h.Pods.Alive(uid) || len(h.Ledger.Pod(uid)) > 0 {
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
		break
	}
	given := h.Ledger.Pod(uid)
	return h.Store.Bounded(func() error {
		for _, a := range given {
			if err := h.Store.Reserve(a); err != nil {
				return err
			}
		}
		return nil
	})
}

// Held are the allocations of a pod, in its spec's order.
func (h *Hook) Held(podUID string) []placement.Allocation { return h.Ledger.Pod(podUID) }
