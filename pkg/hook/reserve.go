// SPDX-License-Identifier: Apache-2.0

package hook

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Reserve allocates GPUs to the containers of a pod before the runtime creates the containers. An
// image pull may delay the creation, while the scheduler that chose the GPUs waits for the answer.
func (h *Hook) Reserve(pod *corev1.Pod) error {
	// No scheduler places static pods, and a forged mirror would take their GPUs.
	if pods.IsMirror(pod) {
		return nil
	}
	uid := string(pod.UID)
	if h.opts.Ledger.Holds(uid) {
		return nil // the most frequent case
	}
	asked, err := request.Read(pod, h.opts.Config)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// If the pod has ended meanwhile, its release has already happened, and nothing would release a
	// new allocation.
	if !h.synchronized || !h.opts.Pods.Alive(uid) || h.opts.Ledger.Holds(uid) {
		return nil
	}
	if asked, err = h.obey(asked, pod); err != nil {
		return err
	}
	for _, c := range asked.Containers {
		if !asked.Asks(c.Name) {
			continue
		}
		if _, err := h.opts.Ledger.Place(asked, c.Name); err != nil {
			return err
		}
		err := h.reserve(uid, h.opts.Ledger.Pod(uid))
		if err != nil {
			h.opts.Ledger.Release(uid) // the caller retries
		}
		return err
	}
	return nil
}

// obey binds the shares of a pod to the GPUs that a scheduler assigned, if any.
func (h *Hook) obey(asked request.Pod, pod *corev1.Pod) (request.Pod, error) {
	gpus := h.opts.GPUs()
	asked, err := choice.Obey(asked, pod, gpus, h.opts.Config)
	if err != nil {
		return request.Pod{}, err
	}
	return assign.Obey(asked, pod, gpus)
}

// reserve persists the allocations of all containers of a pod, unless the store already has the
// allocations. If the agent dies afterwards, no other pod gets the capacity of the allocations. The
// caller holds h.mu.
func (h *Hook) reserve(podUID string, all []placement.Allocation) error {
	if h.reserved[podUID] && h.opts.Store.Reserved(podUID) {
		return nil
	}
	if err := h.opts.Store.Reserve(podUID, all); err != nil {
		return err
	}
	h.reserved[podUID] = true
	return nil
}

// Held returns the allocations of a pod, in the order of its spec.
func (h *Hook) Held(podUID string) []placement.Allocation { return h.opts.Ledger.Pod(podUID) }
