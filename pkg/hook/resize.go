// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Resize changes the sizes of a container's parts of its GPUs, for its running processes too. shares are
// the new sizes, one for each GPU of the container. Resize may be called again after any error, and after
// the agent was killed at any point. Resize then completes the change.
//
// The limits page never allows more than the ledger and the container's files have:
//
//  0. If the GPUs have no room, Resize returns a *placement.NoRoomError. Otherwise the container's files
//     and then the ledger record that the sizes may change.
//  1. The page gets the smaller of the old and the new sizes.
//  2. If the container uses more memory, the page gets the old sizes, and Resize returns a
//     *placement.InUseError.
//  3. The ledger takes the new sizes.
//  4. The container's files get the new sizes.
//  5. The page gets the new sizes.
//
// A *placement.InfeasibleError reports that the container can never have these sizes.
func (h *Hook) Resize(podUID, container string, shares []request.Share) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.synchronized {
		return placement.ErrNotReady
	}
	after, err := h.opts.Ledger.TryResize(podUID, container, shares)
	if err != nil {
		return err
	}
	before, _ := h.opts.Ledger.Get(podUID, container)
	if err := h.checkLimitsPage(before); err != nil {
		return err
	}
	if slices.Equal(before.Devices, after.Devices) {
		return h.complete(before)
	}
	if err := h.markResized(before); err != nil {
		return err
	}
	before.MarkResized()
	if err := h.lower(before, after); err != nil {
		return errors.Join(err, h.updateLimits(before))
	}
	// Every placement holds h.mu, so the capacity that TryResize found is still free.
	h.opts.Ledger.SetResized(after)
	if err := h.persist(after); err != nil {
		h.opts.Ledger.SetResized(before)
		return errors.Join(err, h.persist(before), h.updateLimits(before))
	}
	return h.updateLimits(after)
}

// markResized persists that a container's sizes may change, before any size does. Otherwise a restarted
// agent would not know that the limits page may be lower than the ledger.
func (h *Hook) markResized(a placement.Allocation) error {
	if a.Resized {
		return nil
	}
	a.MarkResized()
	if err := h.persist(a); err != nil {
		return err
	}
	h.opts.Ledger.SetResized(a)
	return nil
}

// checkLimitsPage returns an error if a container has processes and no valid limits page.
func (h *Hook) checkLimitsPage(a placement.Allocation) error {
	_, err := h.opts.Store.Limits(a.PodUID, a.Container)
	_, created := h.opts.Store.Assignment(a.PodUID, a.Container)
	if err == nil || !h.runs(a) && errors.Is(created, fs.ErrNotExist) {
		return nil // the container is not created yet
	}
	given := adjust.Assignment{Allocation: a}
	for _, d := range a.Devices {
		for _, g := range h.opts.GPUs() {
			if g.UUID == d.UUID {
				given.GPUs = append(given.GPUs, g)
			}
		}
	}
	if errors.Is(err, fs.ErrNotExist) && len(given.GPUs) == len(a.Devices) && !h.opts.Rules.Interposes(given) {
		return &placement.InfeasibleError{Why: "the container has whole GPUs and runs without the interposer: request a part of a GPU"}
	}
	if !h.runs(a) {
		return nil
	}
	return fmt.Errorf("read the container's limits page: %w: recreate the container if the page is lost", err)
}

// runs reports whether a container may have processes.
func (h *Hook) runs(a placement.Allocation) bool {
	for _, c := range h.live {
		if c.podUID == a.PodUID && c.name == a.Container {
			return true
		}
	}
	return false
}

// lower lowers the limits page of a container to the smaller of two allocations, and returns a
// *placement.InUseError if the container uses more memory.
func (h *Hook) lower(before, after placement.Allocation) error {
	low := smaller(before, after)
	if slices.Equal(low.Devices, before.Devices) {
		return nil
	}
	// The first check avoids a lower limit if the container already uses more. A process may allocate
	// between the first check and the new limit.
	if err := h.checkUse(before, low); err != nil {
		return err
	}
	if err := h.updateLimits(low); err != nil {
		return err
	}
	return h.checkUse(before, low)
}

// checkUse returns a *placement.InUseError if a container uses more memory than a smaller allocation has.
func (h *Hook) checkUse(before, low placement.Allocation) error {
	shrinks := func(d, from placement.Device) bool { return d.Limit() < from.Limit() }
	if !h.runs(before) || slices.EqualFunc(low.Devices, before.Devices, func(d, from placement.Device) bool { return !shrinks(d, from) }) {
		return nil
	}
	used, err := h.opts.Store.Used(before.PodUID, before.Container)
	if err != nil {
		return fmt.Errorf("read the memory that the container uses: %w", err)
	}
	for i, d := range low.Devices {
		if shrinks(d, before.Devices[i]) && used[i] > d.Limit() {
			return &placement.InUseError{UUID: d.UUID, Used: used[i], Want: d.Limit()}
		}
	}
	return nil
}

// smaller returns the smaller of the sizes of two allocations of a container.
func smaller(a, b placement.Allocation) placement.Allocation {
	devices := slices.Clone(a.Devices)
	for i := range devices {
		d, other := &devices[i], b.Devices[i]
		d.MemoryBytes, d.LimitBytes = min(d.Limit(), other.Limit()), 0
		if d.ComputePPM == 0 || other.ComputePPM > 0 && other.ComputePPM < d.ComputePPM {
			d.ComputePPM = other.ComputePPM
		}
		d.MaximumPPM = min(maximum(a.Devices[i]), maximum(other))
		if d.ComputePPM == 0 || d.MaximumPPM <= d.ComputePPM {
			d.MaximumPPM = 0
		}
	}
	if slices.EqualFunc(devices, a.Devices, sameLimits) {
		devices = a.Devices
	}
	a.Devices = devices
	return a
}

// maximum returns the largest part of a GPU's time that a device allows.
func maximum(d placement.Device) uint32 {
	if d.ComputePPM == 0 {
		return request.Whole
	}
	return max(d.MaximumPPM, d.ComputePPM)
}

// sameLimits reports whether two devices have the same limits.
func sameLimits(a, b placement.Device) bool {
	return a.Limit() == b.Limit() && a.ComputePPM == b.ComputePPM && maximum(a) == maximum(b)
}

// complete writes the sizes of an allocation to the files and the limits page of its container.
func (h *Hook) complete(a placement.Allocation) error {
	saved, err := h.opts.Store.Assignment(a.PodUID, a.Container)
	if err != nil || !slices.Equal(saved.Devices, a.Devices) {
		if err := h.persist(a); err != nil {
			return err
		}
	}
	return h.updateLimits(a)
}

// completeAll repeats complete for the containers for which it has failed.
func (h *Hook) completeAll() {
	for name := range h.incomplete {
		held, ok := h.opts.Ledger.Get(name.podUID, name.container)
		if !ok || h.complete(held) == nil {
			delete(h.incomplete, name)
		}
	}
}

// sizesOnPage returns the allocation that the runtime reports of a running container, with the sizes on
// the container's limits page. The page has other sizes if the container was resized, and the files of
// the resize were lost.
func (h *Hook) sizesOnPage(a placement.Allocation) placement.Allocation {
	page, err := h.opts.Store.Limits(a.PodUID, a.Container)
	if err != nil || len(page) != len(a.Devices) {
		return a
	}
	devices, differ := slices.Clone(a.Devices), false
	for i, p := range page {
		d := &devices[i]
		if d.UUID != p.UUID || d.MPS {
			return a
		}
		if d.Limit() != p.MemoryBytes {
			d.MemoryBytes, d.LimitBytes, differ = p.MemoryBytes, 0, true
		}
		if cmp.Or(d.ComputePPM, limits.NoComputeLimit) != p.ComputePPM {
			d.ComputePPM, d.MaximumPPM, differ = p.ComputePPM%limits.NoComputeLimit, p.MaximumPPM, true
		}
	}
	if differ {
		a.MarkResized()
		a.Devices = devices
	}
	return a
}

// persist first writes a container's allocation to the file of its pod, if the file exists. persist
// then writes the allocation to the container's own file, if the container was created. The own file
// overrides the file of the pod, so an error leaves the old allocation in force.
func (h *Hook) persist(a placement.Allocation) error {
	_, file := h.opts.Store.Assignment(a.PodUID, a.Container)
	_, page := h.opts.Store.Limits(a.PodUID, a.Container)
	reserved := h.opts.Store.Reserved(a.PodUID)
	if reserved {
		all := h.opts.Ledger.Pod(a.PodUID)
		for i := range all {
			if all[i].Container == a.Container {
				all[i] = a
			}
		}
		delete(h.reserved, a.PodUID)
		if err := h.reserve(a.PodUID, all); err != nil {
			return err
		}
	}
	if reserved && errors.Is(file, fs.ErrNotExist) && errors.Is(page, fs.ErrNotExist) {
		return nil
	}
	return h.opts.Store.Rewrite(a)
}

// updateLimits writes an allocation's sizes to the container's limits page, if there is a page.
func (h *Hook) updateLimits(a placement.Allocation) error {
	err := h.opts.Store.UpdateLimits(a, h.opts.GPUs())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a later instance of the container gets a page with its sizes
	}
	return err
}
