// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// Holders returns the allocations of all running containers with a part of a GPU, by
// the runtime's id. If the ledger has no entry for a container, the container's
// allocation has no devices.
func (h *Hook) Holders() map[string]placement.Allocation {
	h.mu.Lock()
	defer h.mu.Unlock()
	holders := make(map[string]placement.Allocation, len(h.live))
	for id, c := range h.live {
		held, ok := h.opts.Ledger.Get(c.podUID, c.name)
		if !ok {
			held = placement.Allocation{PodUID: c.podUID, Container: c.name}
		}
		holders[id] = held
	}
	return holders
}

// Carried returns the first process and the nri-vgpu mounts of each running
// container, by the runtime's id.
func (h *Hook) Carried() map[string]ourfiles.Carried {
	h.mu.Lock()
	defer h.mu.Unlock()
	carried := make(map[string]ourfiles.Carried, len(h.live))
	for id, c := range h.live {
		if c.process.pid != 0 && len(c.ours) > 0 {
			carried[id] = ourfiles.Carried{PID: c.process.pid, Mounts: c.ours}
		}
	}
	return carried
}

// Given returns the limits of a container by the directory of its files. The limits
// come from the ledger, whatever the pages contain.
func (h *Hook) Given(dir string) []limits.Device {
	held, _ := h.opts.Ledger.Get(filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
	return h.opts.Store.PageDevices(held, h.opts.GPUs())
}

// GPUsOf returns the UUIDs of the GPUs of a running container, by the runtime's id.
func (h *Hook) GPUsOf(id string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.live[id]
	if !ok {
		return nil
	}
	held, _ := h.opts.Ledger.Get(c.podUID, c.name)
	uuids := make([]string, 0, len(held.Devices))
	for _, d := range held.Devices {
		uuids = append(uuids, d.UUID)
	}
	return uuids
}

// Synchronized reports whether the runtime has listed its containers. Before the runtime has listed
// its containers, the absence of a container proves nothing.
func (h *Hook) Synchronized() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.synchronized
}
