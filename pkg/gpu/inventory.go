package gpu

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// DefaultTimeout bounds one refresh. The first one initialises the driver,
// which takes seconds on a machine without persistence mode.
const DefaultTimeout = 10 * time.Second

// Driver is what an inventory asks. Its calls may fail and may never return;
// they are made by one goroutine at a time.
type Driver interface {
	// List returns the GPUs that the driver knows now. An entry of which only
	// the index could be read has no UUID, and a reason.
	List() ([]GPU, error)
	// Processes returns those that use a GPU now, by the GPU's UUID. GPUs that do
	// not answer are left out.
	Processes() (map[string][]Process, error)
	// Samples returns what was measured of the processes since a time, by the
	// GPU's UUID. GPUs of which the driver does not tell are left out.
	Samples(since time.Time) (map[string][]Sample, error)
	// Loads returns what was measured of the GPUs themselves since a time, whoever used
	// them, by UUID. GPUs of which the driver does not tell are left out.
	Loads(since time.Time) (map[string][]Load, error)
}

// Inventory is the node's GPUs as last seen. A GPU that was seen once stays
// in it, unhealthy when the driver no longer shows it: containers may hold it.
type Inventory struct {
	driver  Driver
	timeout time.Duration
	calls   Worker
	// turn is held by who asks the driver, so that nobody finds it busy for
	// another's question.
	turn chan struct{}

	mu     sync.Mutex
	gpus   []GPU
	faults map[string]*fault // by UUID
	xids   map[XID]uint64    // how often each came
}

// NewInventory returns an inventory that is empty until its first Refresh, as
// the driver may come later than the agent. Each Refresh takes no longer than
// timeout; 0 is DefaultTimeout.
func NewInventory(d Driver, timeout time.Duration) *Inventory {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return &Inventory{driver: d, timeout: timeout, turn: make(chan struct{}, 1), faults: map[string]*fault{}, xids: map[XID]uint64{}}
}

// GPUs returns a copy of the GPUs as last seen, ordered by index. It never
// waits for the driver.
func (i *Inventory) GPUs() []GPU {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.gpus)
}

// Refresh asks the driver and gives the GPUs as they are now. If the driver
// fails or does not answer in time, all GPUs are unhealthy and the error says
// what to do; they recover with the first Refresh that succeeds.
func (i *Inventory) Refresh(ctx context.Context) ([]GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	seen, err := ask(ctx, i, i.driver.List)
	if err != nil {
		err = i.explain(err)
		return i.update(func(known []GPU) []GPU { return allUnhealthy(known, err.Error()) }), err
	}
	return i.update(func(known []GPU) []GPU { return judge(merge(known, seen), i.faults, time.Now()) }), nil
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

// merge takes what the driver shows now, and keeps what it showed before.
func merge(known, seen []GPU) []GPU {
	gpus := make([]GPU, 0, len(seen))
	for _, g := range seen {
		if g.UUID == "" {
			// A lost GPU does not tell its name: the one that had this
			// index is meant. Without one there is nothing to list.
			k := slices.IndexFunc(known, func(old GPU) bool { return old.Index == g.Index })
			if k < 0 {
				continue
			}
			reason := g.Reason
			g = known[k]
			g.Healthy, g.Reason = false, reason
		}
		gpus = append(gpus, g)
	}
	for _, old := range known {
		if !slices.ContainsFunc(gpus, func(g GPU) bool { return g.UUID == old.UUID }) {
			old.Healthy, old.Reason = false, "the driver no longer lists this GPU"
			gpus = append(gpus, old)
		}
	}
	slices.SortStableFunc(gpus, func(a, b GPU) int { return a.Index - b.Index })
	return gpus
}
