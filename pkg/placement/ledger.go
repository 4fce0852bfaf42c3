package placement

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Ledger keeps what every container holds of the node's GPUs. It is safe for
// concurrent use; no method does I/O or waits for anything but the others.
type Ledger struct {
	config config.Config
	spread bool

	mu    sync.Mutex
	cards []card             // by index
	pods  map[string]holding // by UID
	// taken is what all pods take of each GPU, by UUID.
	taken map[string]total
	// refused are pods that found no room since something was freed last, by UID.
	refused map[string]refusal
	// searches counts plans, those that found no room among them.
	searches uint64
}

// refusal is that a pod found no room.
type refusal struct {
	version string
	err     error
}

// maxRefused bounds the refusals that are remembered. Any node has fewer pods.
const maxRefused = 1024

// holding is what a pod holds. It is never changed but replaced, so that it can be
// read without the lock.
type holding struct {
	containers []Allocation    // in the spec's order
	loads      map[string]load // by the GPU's UUID
}

// hold replaces what a pod holds.
func (l *Ledger) hold(podUID string, containers []Allocation) {
	for uuid, one := range l.pods[podUID].loads {
		if l.taken[uuid] = l.taken[uuid].minus(one); l.taken[uuid] == (total{}) {
			delete(l.taken, uuid)
		}
	}
	delete(l.pods, podUID)
	if len(containers) == 0 {
		return
	}
	loads := map[string]load{}
	for _, c := range containers {
		for _, d := range c.Devices {
			if _, known := loads[d.UUID]; !known {
				one := newColumn(containers, d.UUID)
				loads[d.UUID] = one.load()
				l.taken[d.UUID] = l.taken[d.UUID].plus(one.load())
			}
		}
	}
	l.pods[podUID] = holding{containers, loads}
}

// Searches returns how many searches for GPUs there have been.
func (l *Ledger) Searches() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.searches
}

// freed forgets who was refused: there may be room now. What is taken makes none.
func (l *Ledger) freed() { clear(l.refused) }

// remembered returns why a pod found no room if nothing was freed since, nor the pod
// changed.
func (l *Ledger) remembered(pod request.Pod) error {
	if r, ok := l.refused[pod.UID]; ok && r.version == pod.Version {
		return r.err
	}
	return nil
}

func (l *Ledger) remember(pod request.Pod, err error) {
	if pod.Version == "" {
		return
	}
	if len(l.refused) >= maxRefused {
		clear(l.refused)
	}
	l.refused[pod.UID] = refusal{pod.Version, err}
}

// card is a GPU and the memory of it, in bytes, that may be given away.
type card struct {
	gpu.GPU
	usable uint64
	mps    bool
}

// New is an empty ledger of the given GPUs.
func New(gpus []gpu.GPU, cfg config.Config) *Ledger {
	l := &Ledger{
		config: cfg,
		spread: cfg.Placement.Policy == config.PlaceSpread,
		pods:   make(map[string]holding),
		taken:  make(map[string]total),

		refused: make(map[string]refusal),
	}
	l.SetGPUs(gpus)
	return l
}

// SetGPUs replaces what is known of the node's GPUs. What containers hold
// stays theirs, also on a GPU that is unhealthy now or gone; such a GPU takes
// no new container.
func (l *Ledger) SetGPUs(gpus []gpu.GPU) {
	cards := make([]card, len(gpus))
	for i, g := range gpus {
		cards[i] = card{GPU: g, usable: request.Usable(g, l.config), mps: l.config.Sharing.ByMPS(g.UUID)}
	}
	slices.SortFunc(cards, func(a, b card) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.cards, cards) {
		l.freed()
	}
	l.cards = cards
}

// Place gives a container of a pod its GPUs. At a pod's first container all
// its others are given theirs, too, so that a pod never holds a part of what
// it needs and waits for the rest. It is idempotent: a container that was
// placed or restored keeps what it has, whatever the pod says now. A container
// that asks for nothing, or is ephemeral, gets an allocation without devices.
//
// When there is no room the error is a *NoRoomError and nothing is taken. The same error
// is returned without another search until something is freed or the pod changes.
func (l *Ledger) Place(pod request.Pod, container string) (Allocation, error) {
	position := slices.IndexFunc(pod.Containers, func(c request.Container) bool { return c.Name == container })
	if position < 0 {
		return Allocation{}, fmt.Errorf("pod %s/%s has no container %q", pod.Namespace, pod.Name, container)
	}
	if !asks(pod.Containers[position]) {
		return blank(pod, position), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a, ok := find(l.pods[pod.UID].containers, container); ok {
		return clone(a), nil
	}
	if err := l.remembered(pod); err != nil {
		return Allocation{}, err
	}
	l.searches++
	placed, err := l.plan(pod)
	if err != nil {
		l.remember(pod, err)
		return Allocation{}, err
	}
	l.hold(pod.UID, placed)
	a, _ := find(placed, container)
	return clone(a), nil
}

// asks tells whether a container is to get anything.
func asks(c request.Container) bool {
	return c.Kind != request.Ephemeral && len(c.Shares) > 0
}

// blank is the allocation of a pod's container, without devices yet.
func blank(pod request.Pod, position int) Allocation {
	c := pod.Containers[position]
	return Allocation{
		PodUID:    pod.UID,
		Namespace: pod.Namespace,
		Pod:       pod.Name,
		Container: c.Name,
		Kind:      c.Kind,
		Position:  position,
		Dialect:   c.Dialect,
	}
}

// maxRestored bounds the memory of a restored device, far beyond any GPU, so
// that sums cannot overflow.
const maxRestored = 1 << 50 // bytes

// Restore enters what a container was given before, as found after a restart.
// It is a fact, and entered even when it is more than the GPUs have now. The
// order of calls does not matter. An allocation that is malformed, or that
// contradicts what the container holds already, is an error.
func (l *Ledger) Restore(a Allocation) error {
	if err := validate(a); err != nil {
		return fmt.Errorf("restore container %q of pod %s: %w", a.Container, a.PodUID, err)
	}
	if len(a.Devices) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	containers := l.pods[a.PodUID].containers
	if old, ok := find(containers, a.Container); ok {
		if !slices.Equal(old.Devices, a.Devices) {
			return fmt.Errorf("restore container %q of pod %s: it holds other devices already", a.Container, a.PodUID)
		}
		return nil
	}
	l.enter(a.PodUID, append(slices.Clone(containers), clone(a)))
	return nil
}

// Adopt enters what a running container has, as its runtime tells it, and which
// so goes before what was restored of it. It tells whether that was something
// else.
func (l *Ledger) Adopt(a Allocation) (replaced bool, err error) {
	if err := validate(a); err != nil {
		return false, fmt.Errorf("adopt container %q of pod %s: %w", a.Container, a.PodUID, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	containers := slices.Clone(l.pods[a.PodUID].containers)
	i := slices.IndexFunc(containers, func(c Allocation) bool { return c.Container == a.Container })
	switch {
	case i < 0 && len(a.Devices) == 0:
		return false, nil
	case i < 0:
		l.enter(a.PodUID, append(containers, clone(a)))
		return false, nil
	case slices.Equal(containers[i].Devices, a.Devices):
		return false, nil
	}
	containers[i] = clone(a)
	l.enter(a.PodUID, containers)
	return true, nil
}

// enter has a pod hold what it was given before, and which the ledger did not know:
// its other containers may find room now that it makes use of again.
func (l *Ledger) enter(podUID string, containers []Allocation) {
	l.hold(podUID, inOrder(containers))
	l.freed()
}

func validate(a Allocation) error {
	if a.PodUID == "" || a.Container == "" {
		return errors.New("pod UID or container name is missing")
	}
	if a.Kind == "" {
		return errors.New("kind of container is missing")
	}
	for _, d := range a.Devices {
		if d.UUID == "" || d.MemoryBytes > maxRestored || d.LimitBytes > maxRestored || d.Slots < 0 || d.ComputePPM > request.Whole ||
			d.MaximumPPM != 0 && (d.MaximumPPM <= d.ComputePPM || d.MaximumPPM > request.Whole) {
			return fmt.Errorf("device %+v is out of range", d)
		}
	}
	return nil
}

// Release frees all that a pod holds. A pod that holds nothing is no error.
func (l *Ledger) Release(podUID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, holds := l.pods[podUID]; holds {
		l.hold(podUID, nil)
		l.freed()
	}
}

// Get is what a container holds, if anything.
func (l *Ledger) Get(podUID, container string) (Allocation, bool) {
	a, ok := find(l.holding(podUID).containers, container)
	return clone(a), ok
}

// Pod is what the containers of one pod hold, in the spec's order.
func (l *Ledger) Pod(uid string) []Allocation {
	return clones(l.holding(uid).containers)
}

// Holds reports whether a pod holds anything.
func (l *Ledger) Holds(podUID string) bool {
	return len(l.holding(podUID).containers) > 0
}

func (l *Ledger) holding(podUID string) holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[podUID]
}

// Holders lists the UIDs of the pods that hold anything, sorted.
func (l *Ledger) Holders() []string {
	return slices.Sorted(maps.Keys(l.snapshot()))
}

// Allocations lists what every container holds, those of a pod together in
// the spec's order. It includes containers that are yet to start.
func (l *Ledger) Allocations() []Allocation {
	var all []Allocation
	pods := l.snapshot()
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		all = append(all, clones(pods[uid].containers)...)
	}
	return all
}

// snapshot is what each pod holds now.
func (l *Ledger) snapshot() map[string]holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.pods)
}

func find(containers []Allocation, name string) (Allocation, bool) {
	i := slices.IndexFunc(containers, func(a Allocation) bool { return a.Container == name })
	if i < 0 {
		return Allocation{}, false
	}
	return containers[i], true
}

func clone(a Allocation) Allocation {
	a.Devices = slices.Clone(a.Devices)
	return a
}

func clones(all []Allocation) []Allocation {
	var copies []Allocation
	for _, a := range all {
		copies = append(copies, clone(a))
	}
	return copies
}

// inOrder sorts a pod's containers as its spec has them.
func inOrder(containers []Allocation) []Allocation {
	slices.SortFunc(containers, func(a, b Allocation) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Container, b.Container))
	})
	return containers
}
