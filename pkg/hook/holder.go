package hook

import (
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// Holders returns what each container holds that runs now and was given a part of
// a GPU, by the runtime's id. One of which the ledger does not know what it was
// given holds no devices.
func (h *Hook) Holders() map[string]placement.Allocation {
	h.mu.Lock()
	defer h.mu.Unlock()
	holders := make(map[string]placement.Allocation, len(h.live))
	for id, c := range h.live {
		held, ok := h.Ledger.Get(c.podUID, c.name)
		if !ok {
			held = placement.Allocation{PodUID: c.podUID, Container: c.name}
		}
		holders[id] = held
	}
	return holders
}

// Carried returns, by the runtime's id, the first process of each container that runs
// and has our files, and which it has.
func (h *Hook) Carried() map[string]injected.Carried {
	h.mu.Lock()
	defer h.mu.Unlock()
	carried := make(map[string]injected.Carried, len(h.live))
	for id, c := range h.live {
		if c.process.pid != 0 && len(c.ours) > 0 {
			carried[id] = injected.Carried{PID: c.process.pid, Mounts: c.ours}
		}
	}
	return carried
}

// Given returns the limits that a container was given, by the directory of its files:
// the ledger has them, whatever its pages contain.
func (h *Hook) Given(dir string) []limits.Device {
	held, _ := h.Ledger.Get(filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
	return h.Store.pageDevices(held, h.GPUs())
}

// GPUsOf returns the UUIDs of the GPUs that a container was given which runs now, by
// the runtime's id.
func (h *Hook) GPUsOf(id string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.live[id]
	if !ok {
		return nil
	}
	held, _ := h.Ledger.Get(c.podUID, c.name)
	uuids := make([]string, 0, len(held.Devices))
	for _, d := range held.Devices {
		uuids = append(uuids, d.UUID)
	}
	return uuids
}

// Synchronized reports whether the runtime has told its containers: before, that
// one is not known means nothing.
func (h *Hook) Synchronized() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.synchronized
}
