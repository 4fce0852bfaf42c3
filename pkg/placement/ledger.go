// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Ledger records every container's allocation of the node's GPUs. A Ledger is safe for concurrent
// use. No method does I/O, and every method waits only for the mutex.
type Ledger struct {
	config config.Config

	mu    sync.Mutex
	cards []card             // by index
	pods  map[string]holding // by UID
	// taken is the load of all pods on each GPU, by UUID.
	taken map[string]total
	// refused are the pods that found no room since the last release, by UID.
	refused map[string]refusal
	// searches counts all searches, including searches that found no room.
	searches uint64
	// releases is the time of the last release on each GPU, by UUID, in the mode fit. now is the clock.
	releases map[string]time.Time
	now      func() time.Time
}

// settling is the time after a release in which the mode fit places pods on other GPUs if possible.
// Until the labels show the freed capacity, the scheduler binds pods that fit elsewhere. Pods that
// need the freed capacity follow.
const settling = time.Second

// refusal records that a pod found no room.
type refusal struct {
	version string
	err     error
}

// maxRefused bounds the remembered refusals. Every node has fewer pods.
const maxRefused = 1024

// holding is a pod's allocations. The ledger replaces a holding and never modifies it, so that
// readers need no lock.
type holding struct {
	containers []Allocation    // in the spec's order
	loads      map[string]load // by the GPU's UUID
}

// hold replaces a pod's allocations.
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

// Searches returns the number of searches for GPUs so far.
func (l *Ledger) Searches() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.searches
}

// freed drops the refusals, because a release may have made room. An allocation never makes
// room.
func (l *Ledger) freed() { clear(l.refused) }

// remembered returns the error of a pod's last search, unless a pod has released GPUs or the pod
// has changed since the search.
func (l *Ledger) remembered(pod request.Pod) error {
	if r, ok := l.refused[pod.UID]; ok && r.version == pod.Version {
		return r.err
	}
	return nil
}

// Refused reports whether a pod has found no room since the last release, and has not changed.
func (l *Ledger) Refused(pod request.Pod) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remembered(pod) != nil
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

// card is a GPU and its allocatable memory in bytes.
type card struct {
	gpu.GPU
	usable uint64
	mps    bool
}

// New returns an empty ledger of the given GPUs.
func New(gpus []gpu.GPU, cfg config.Config) *Ledger {
	l := &Ledger{
		config: cfg,
		pods:   make(map[string]holding),
		taken:  make(map[string]total),

		refused:  make(map[string]refusal),
		releases: make(map[string]time.Time),
		now:      time.Now,
	}
	l.SetGPUs(gpus)
	return l
}

// SetClock replaces the clock, for simulations. SetClock must precede all other calls.
func (l *Ledger) SetClock(now func() time.Time) { l.now = now }

// SetGPUs replaces the ledger's list of GPUs. Containers keep their allocations even on
// a GPU that is now unhealthy or gone, but an unhealthy GPU gets no new container.
func (l *Ledger) SetGPUs(gpus []gpu.GPU) {
	cards := make([]card, len(gpus))
	for i, g := range gpus {
		cards[i] = card{GPU: g, usable: request.Usable(g, l.config), mps: l.config.Sharing.ByMPS(g.UUID)}
	}
	slices.SortFunc(cards, func(a, b card) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.MIG.Index, b.MIG.Index), cmp.Compare(a.UUID, b.UUID))
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.cards, cards) {
		l.freed()
	}
	l.cards = cards
}

// Place allocates a container of a pod its GPUs. With the first container of a pod, Place allocates
// the GPUs of all containers of the pod. Therefore a pod never holds only some of its GPUs while it
// waits for other GPUs. Place is idempotent: a placed or restored container keeps its allocation,
// whatever the pod requests now. A container that requests no GPU or is ephemeral gets an
// allocation without devices.
//
// If a container has no room, Place returns a *NoRoomError and allocates nothing. Until the release
// of a pod or a change of this pod, Place returns the same error without another search.
func (l *Ledger) Place(pod request.Pod, container string) (Allocation, error) {
	position := slices.IndexFunc(pod.Containers, func(c request.Container) bool { return c.Name == container })
	if position < 0 {
		return Allocation{}, fmt.Errorf("pod %s/%s has no container %q", pod.Namespace, pod.Name, container)
	}
	if !pod.Containers[position].Asks() {
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
	l.hold(pod.UID, placed.containers)
	a, _ := find(placed.containers, container)
	return clone(a), nil
}

// Fits reports whether Place would find GPUs for a pod without allocations.
func (l *Ledger) Fits(pod request.Pod) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.planner(pod).solve(maxTries)
}

// FitsWithout reports whether Place would find GPUs for a pod without allocations if the others
// also had no allocations.
func (l *Ledger) FitsWithout(pod request.Pod, others ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.planner(pod, others...).solve(maxTries)
}

// Hold records the allocations of a pod whose shares are each bound to one GPU. Hold accepts a GPU
// that has no room or is unhealthy. A pod keeps its existing allocations. If a share is bound to no
// GPU of the ledger, Hold returns an error and records nothing.
func (l *Ledger) Hold(pod request.Pod) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.planner(pod)
	for _, t := range p.todo {
		held := &p.containers[t.container].Devices
		for _, share := range t.shares {
			g := slices.IndexFunc(p.cards, func(c card) bool { return len(share.GPUs) == 1 && c.UUID == share.GPUs[0] })
			if g < 0 {
				return fmt.Errorf("pod %s/%s is bound to GPUs %q, of which none is in the ledger", pod.Namespace, pod.Name, share.GPUs)
			}
			*held = append(*held, p.device(g, share))
		}
	}
	l.hold(pod.UID, p.containers)
	return nil
}

// blank returns the allocation of a pod's container, without devices.
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

// maxRestored bounds the memory of a restored device. maxRestored is far beyond any
// GPU's memory and prevents overflows of sums.
const maxRestored = 1 << 50 // bytes

// Restore records an allocation of a container from before a restart. Restore accepts an allocation
// that exceeds the GPUs' current capacity, since a running container may hold the allocation. The
// order of calls does not matter. Restore returns an error if the allocation is malformed or
// contradicts the container's recorded allocation.
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

// Adopt records a running container's allocation as the runtime reports it. The report overrides
// restored state, except for the sizes of a resized allocation: the runtime knows only the sizes at
// the container's creation. replaced reports whether the report replaced the recorded allocation.
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
	case slices.Equal(containers[i].Devices, a.Devices), resizedFrom(containers[i], a):
		return false, nil
	}
	containers[i] = clone(a)
	l.enter(a.PodUID, containers)
	return true, nil
}

// resizedFrom reports whether the recorded allocation of a container was resized since the allocation
// that the runtime reports.
func resizedFrom(held, reported Allocation) bool {
	return held.Resized && slices.EqualFunc(held.Devices, reported.Devices, func(x, y Device) bool { return x.UUID == y.UUID })
}

// enter records allocations that the ledger did not know. enter clears the refusals, since other
// containers may find room beside or within the new allocations.
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
	for _, d := range slices.Concat(a.Devices, a.Placed) {
		if d.UUID == "" || d.MemoryBytes > maxRestored || d.LimitBytes > maxRestored || d.Slots < 0 || d.ComputePPM > request.Whole ||
			d.MaximumPPM != 0 && (d.MaximumPPM <= d.ComputePPM || d.MaximumPPM > request.Whole) {
			return fmt.Errorf("device %+v is out of range", d)
		}
	}
	return nil
}

// Release releases all allocations of a pod, if the pod has any.
func (l *Ledger) Release(podUID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if held, holds := l.pods[podUID]; holds {
		if l.config.Scheduling.Fit() {
			for uuid := range held.loads {
				l.releases[uuid] = l.now()
			}
		}
		l.hold(podUID, nil)
		l.freed()
	}
}

// Get returns a container's allocation, if any.
func (l *Ledger) Get(podUID, container string) (Allocation, bool) {
	a, ok := find(l.holding(podUID).containers, container)
	return clone(a), ok
}

// Pod returns the allocations of a pod's containers, in the order of its spec.
func (l *Ledger) Pod(uid string) []Allocation {
	return clones(l.holding(uid).containers)
}

// Holds reports whether a pod has allocations.
func (l *Ledger) Holds(podUID string) bool {
	return len(l.holding(podUID).containers) > 0
}

func (l *Ledger) holding(podUID string) holding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[podUID]
}

// Holders returns the UIDs of the pods with allocations, sorted.
func (l *Ledger) Holders() []string {
	return slices.Sorted(maps.Keys(l.snapshot()))
}

// Allocations returns the allocations of all containers, grouped by pod, in the order of
// each pod's spec. Allocations includes containers that have not started yet.
func (l *Ledger) Allocations() []Allocation {
	var all []Allocation
	pods := l.snapshot()
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		all = append(all, clones(pods[uid].containers)...)
	}
	return all
}

// snapshot returns the current holding of each pod.
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
	a.Devices, a.Placed = slices.Clone(a.Devices), slices.Clone(a.Placed)
	return a
}

func clones(all []Allocation) []Allocation {
	var copies []Allocation
	for _, a := range all {
		copies = append(copies, clone(a))
	}
	return copies
}

// inOrder sorts a pod's containers in the order of its spec.
func inOrder(containers []Allocation) []Allocation {
	slices.SortFunc(containers, func(a, b Allocation) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Container, b.Container))
	})
	return containers
}
