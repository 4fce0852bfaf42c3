// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// DefaultTimeout bounds one refresh. The first refresh initialises the driver, which
// takes seconds on a machine without persistence mode.
const DefaultTimeout = 10 * time.Second

// Driver queries the GPU driver. The calls of a Driver may fail and may never return.
// Only one goroutine at a time calls a Driver.
type Driver interface {
	// List returns the GPUs that the driver lists now. If List can read only the index of a GPU,
	// the GPU's entry has no UUID, and has a reason. If List cannot read all properties of a GPU, the
	// GPU is unhealthy, and its MemoryBytes is 0.
	List() ([]GPU, error)
	// Processes returns the processes that use a GPU now, by the GPU's UUID. Processes
	// omits GPUs that do not answer.
	Processes() (map[string][]Process, error)
	// Samples returns the measurements of processes since a time, by the GPU's UUID.
	// Samples omits GPUs that the driver does not measure.
	Samples(since time.Time) (map[string][]Sample, error)
	// Loads returns the measurements of the GPUs themselves since a time, for all
	// processes together, by UUID. Loads omits GPUs that the driver does not measure.
	Loads(since time.Time) (map[string][]Load, error)
}

// Inventory is the node's GPUs as last seen. A GPU stays in the inventory, but becomes
// unhealthy, when the driver no longer lists it: containers may hold it.
type Inventory struct {
	driver  Driver
	timeout time.Duration
	calls   Worker
	// turn has an element during a call of the driver. A second caller waits for its turn and does
	// not fail with errBusy.
	turn chan struct{}

	selection Selection

	mu     sync.Mutex
	gpus   []GPU
	faults map[string]*fault // by UUID
	xids   map[XID]uint64    // count of each XID
	// leftOut are the GPUs that the node does not offer.
	leftOut []GPU
}

// NewInventory returns an inventory that is empty until its first Refresh, as the driver may start
// later than the agent. Each Refresh takes no longer than timeout; 0 selects DefaultTimeout.
func NewInventory(d Driver, timeout time.Duration) *Inventory {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return &Inventory{driver: d, timeout: timeout, turn: make(chan struct{}, 1), faults: map[string]*fault{}, xids: map[XID]uint64{}}
}

// GPUs returns a copy of the offered GPUs as last seen, ordered by index. GPUs never waits
// for the driver.
func (i *Inventory) GPUs() []GPU {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.gpus)
}

// Refresh queries the driver and returns the current GPUs. If the driver fails or does
// not answer in time, all GPUs become unhealthy, and the error describes what to do.
// The GPUs recover with the first successful Refresh.
func (i *Inventory) Refresh(ctx context.Context) ([]GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	seen, err := ask(ctx, i, i.driver.List)
	if err != nil {
		err = i.explain(err)
		return i.update(func(known []GPU) []GPU { return allUnhealthy(known, err.Error()) }), err
	}
	return i.update(func(known []GPU) []GPU {
		complete(seen, slices.Concat(known, i.leftOut))
		return i.withhold(judge(merge(known, i.offered(seen), seen), i.faults, time.Now()))
	}), nil
}

func (i *Inventory) explain(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the NVIDIA driver did not answer in time: look for Xid errors in dmesg; the node may need a reboot")
	case errors.Is(err, errBusy):
		return errors.New("the NVIDIA driver still does not answer: look for Xid errors in dmesg; the node may need a reboot")
	default:
		return err
	}
}

func (i *Inventory) update(change func([]GPU) []GPU) []GPU {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gpus = change(i.gpus)
	return slices.Clone(i.gpus)
}

func allUnhealthy(known []GPU, reason string) []GPU {
	gpus := slices.Clone(known)
	for k := range gpus {
		gpus[k].Healthy, gpus[k].Reason = false, reason
	}
	return gpus
}

// complete replaces the GPUs whose properties the driver could not read by their known properties.
func complete(seen, known []GPU) {
	for k, g := range seen {
		i := slices.IndexFunc(known, func(old GPU) bool { return old.UUID == g.UUID })
		if g.Healthy || g.MemoryBytes > 0 || i < 0 {
			continue
		}
		seen[k] = known[i]
		seen[k].Index, seen[k].Healthy, seen[k].Reason = g.Index, false, g.Reason
	}
}

// merge returns the offered GPUs that the driver lists now, and keeps the known GPUs that it no longer
// lists. merge drops a known GPU if the driver lists its card in another form. An administrator has then
// divided the card into other MIG devices, or has changed its MIG mode.
func merge(known, offered, seen []GPU) []GPU {
	gpus := make([]GPU, 0, len(offered))
	for _, g := range offered {
		if g.UUID == "" {
			// A lost GPU reports no UUID, so its index identifies the GPU and its MIG devices. The index
			// does not identify a GPU that the driver lists elsewhere. merge drops the entry if no
			// known GPU had the index.
			for _, old := range known {
				if old.Index == g.Index && !lists(seen, old.UUID) {
					old.Healthy, old.Reason = false, g.Reason
					gpus = append(gpus, old)
				}
			}
			continue
		}
		gpus = append(gpus, g)
	}
	for _, old := range known {
		if !lists(gpus, old.UUID) && !changed(old, seen) {
			old.Healthy, old.Reason = false, "the driver no longer lists this GPU"
			gpus = append(gpus, old)
		}
	}
	slices.SortStableFunc(gpus, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.MIG.Index, b.MIG.Index))
	})
	return gpus
}

func lists(gpus []GPU, uuid string) bool {
	return slices.ContainsFunc(gpus, func(g GPU) bool { return g.UUID == uuid })
}

// changed reports whether the driver lists the card of a missing GPU in another form.
func changed(missing GPU, seen []GPU) bool {
	return slices.ContainsFunc(seen, func(g GPU) bool {
		if g.UUID == "" || g.Card() != missing.Card() {
			return false
		}
		return g.Undivided || g.UUID != missing.UUID && (g.Healthy || g.MIG != (MIG{}))
	})
}
