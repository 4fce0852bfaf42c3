// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// These constants bound the cost of a plan. NRI creates one container at a time, so all other
// containers of the node wait during a search.
const (
	// planTime bounds the search for a pod that fits nowhere.
	planTime = 4 * time.Millisecond
	// tryTime is the most time that a try takes, including sorting 16 GPUs: see
	// BenchmarkPlace.
	tryTime = 480 * time.Nanosecond
	// searches is the number of searches of a plan that may branch: the search over all GPUs and
	// the search with divided shares. A search on a single GPU takes one try per container.
	searches = 2
	// maxTries bounds the tries of a search; a try puts one share on one GPU. A search without
	// backtracking needs fewer tries, even for MostAsking containers, each with shares of three
	// kinds, on 16 GPUs.
	maxTries = int(planTime / tryTime / searches)
)

// Plan returns the allocations that Place would make for all containers of a pod, in the order of
// its spec. Plan also returns the mean part of the memory that would stay free on the pod's GPUs,
// from 0 to 1. Plan does not change the ledger. If a container has no room, Plan returns a
// *NoRoomError.
func (l *Ledger) Plan(pod request.Pod) (all []Allocation, free float64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.plan(pod)
	if err != nil {
		return nil, 0, err
	}
	return p.containers, p.freeMemory(), nil
}

// freeMemory returns the mean part of the memory that is free on the pod's cards, from 0 to 1.
func (p *planner) freeMemory() float64 {
	var sum, cards float64
	for g, r := range p.ranks {
		if r.own && p.cards[g].usable > 0 {
			sum += float64(r.free) / float64(p.cards[g].usable)
			cards++
		}
	}
	return sum / max(cards, 1)
}

// plan returns a planner that has found GPUs for all containers of a pod without GPUs. plan does
// not change the ledger.
func (l *Ledger) plan(pod request.Pod) (*planner, error) {
	p := l.planner(pod)
	if p.solve(maxTries) {
		return p, nil
	}
	failed := p.todo[p.deepest.task]
	err := &NoRoomError{
		Namespace: pod.Namespace,
		Pod:       pod.Name,
		Container: p.containers[failed.container].Container,
		Share:     failed.shares[p.deepest.share],
		GPUs:      len(failed.shares),
		Free:      l.free(),
	}
	if p.counted {
		p = l.planner(pod)
		p.counted = false
		err.Uncounted = p.solve(maxTries)
	}
	return nil, err
}

// planner returns a planner for the containers of a pod, as if some other pods had no allocations.
func (l *Ledger) planner(pod request.Pod, without ...string) *planner {
	p := &planner{
		cards:   l.cards,
		others:  l.loads(slices.Concat(without, []string{pod.UID})...),
		slots:   l.config.Node.SlotsPerGPU,
		clients: l.clients(),
		spread:  cmp.Or(pod.Policy, l.config.Placement.Policy) == config.PlaceSpread,
		columns: make([]column, len(l.cards)),
		ranks:   make([]rank, len(l.cards)),
		settles: make([]bool, len(l.cards)),
		counted: l.config.Dialects.Native.Amounts == config.AmountsTotal && slices.ContainsFunc(pod.Containers, initializes),
	}
	for _, a := range l.pods[pod.UID].containers {
		p.containers = append(p.containers, clone(a))
	}
	for i, c := range pod.Containers {
		if _, placed := find(p.containers, c.Name); c.Asks() && !placed {
			p.containers = append(p.containers, blank(pod, i))
		}
	}
	p.containers = inOrder(p.containers)
	for i, c := range p.containers {
		if len(c.Devices) == 0 {
			p.todo = append(p.todo, task{container: i, shares: pod.Containers[c.Position].Shares})
		}
	}
	for g := range p.cards {
		at, freed := l.releases[p.cards[g].UUID]
		p.settles[g] = freed && l.now().Sub(at) < settling
		p.columns[g] = newColumn(p.containers, p.cards[g].UUID)
		p.rank(g)
	}
	p.orders = make([][]int, len(p.todo)+1)
	p.orders[0] = p.inOrder(nil)
	p.hopeless = p.findHopeless()
	return p
}

// planner searches for GPUs for the containers of one pod.
type planner struct {
	cards  []card
	others []load // the load of the other pods on each card
	slots  int
	// clients is the number of containers that the Multi-Process Service serves on a
	// card.
	clients int
	spread  bool

	containers []Allocation // of the pod, in the order of its spec
	todo       []task
	columns    []column // the pod's load on each card
	ranks      []rank   // of each card, by that load
	settles    []bool   // whether capacity of each card was freed just now, in the mode fit
	// orders are the cards in the order in which each task tries them, valid during the
	// task's search.
	orders [][]int
	// taken are the cards of the devices allocated by the search, in order of allocation.
	taken []int
	// within, if not nil, restricts the search to these cards.
	within []int
	// counted requires that the pod holds at most what a quota counts.
	counted bool
	// split allows the division of shares that permit it.
	split bool
	most  int // the bound on a search's tries
	tries int // the remaining tries of this search
	tried int // the tries of all searches
	// hopeless is a step that no search can complete: a search stops at hopeless.
	hopeless step
	deepest  step // the furthest step reached, for the error
}

// initializes reports whether a container is an init container whose GPUs, of the native dialect, a
// search must choose.
func initializes(c request.Container) bool {
	return c.Kind == request.Init && c.Dialect == request.DialectNative && c.Asks() &&
		slices.ContainsFunc(c.Shares, func(s request.Share) bool { return len(s.GPUs) != 1 })
}

// withinQuota reports whether the pod holds at most what a quota counts. A quota counts the most that the
// pod's containers use of all GPUs at any time. The pod holds the most that the containers use of each GPU.
// These amounts differ if an init container has other GPUs than the containers after it.
func (p *planner) withinQuota() bool {
	var held load
	for g := range p.columns {
		held = held.beside(p.columns[g].load())
	}
	most := peakOf(p.containers)
	return held.memory <= most.memory && held.compute <= most.compute
}

// task is a container that has no GPUs yet.
type task struct {
	container int // in planner.containers
	shares    []request.Share
}

// step identifies a share of a task.
type step struct{ task, share int }

// solve runs up to three searches, and reports whether a search has found GPUs. If each container
// requests at most one GPU, the first search tries one GPU for all containers. The second search
// tries any GPUs, and the third search divides shares. most bounds the tries of each search.
func (p *planner) solve(most int) bool {
	p.most = most
	if p.eachAsksForOne() {
		for _, g := range slices.Clone(p.orders[0]) {
			p.within = []int{g}
			if p.attempt() {
				return true
			}
		}
		p.within = nil
	}
	if p.attempt() {
		return true
	}
	p.split = p.mayDivide()
	return p.split && p.attempt()
}

func (p *planner) attempt() bool {
	if p.deepest == p.hopeless {
		return false
	}
	p.tries = p.most
	return p.place(0)
}

// findHopeless returns the first share that no search can place. A share is hopeless if no GPU has
// room for it, even without the earlier containers. A share is also hopeless if all GPUs together
// have too little room for the share and the shares beside it. If every share may fit, or if the
// pod already holds GPUs to reuse, findHopeless returns a step that does not exist.
func (p *planner) findHopeless() step {
	nowhere := step{task: -1}
	if len(p.todo) < len(p.containers) {
		return nowhere
	}
	var running load
	all := p.free()
	for n, t := range p.todo {
		now, rooms, alike := running, 0, 0
		for i, share := range t.shares {
			if alike++; i == 0 || !equal(share, t.shares[i-1]) {
				rooms, alike = p.roomsFor(share), 1
			}
			now.memory += share.Memory.Bytes
			now.compute += uint64(share.ComputePPM)
			now.slots += share.Slots
			if share.SplitPPM == 0 && alike > rooms || now.memory > all.memory || now.compute > all.compute || now.slots > all.slots {
				return step{n, i}
			}
		}
		if p.containers[t.container].Kind != request.Init {
			running = now
		}
	}
	return nowhere
}

// free returns the capacity that the other pods leave on all cards together.
func (p *planner) free() load {
	var all load
	for g := range p.cards {
		if others := p.others[g]; p.cards[g].Healthy && !others.exclusive {
			all.memory += p.cards[g].usable - min(others.memoryOf(p.cards[g].usable), p.cards[g].usable)
			all.compute += request.Whole - min(others.compute, request.Whole)
			all.slots += max(p.slots-others.slots, 0)
		}
	}
	return all
}

// roomsFor returns the number of cards that have room for a share.
func (p *planner) roomsFor(share request.Share) int {
	rooms := 0
	for g := range p.cards {
		d := p.device(g, share)
		if p.eligible(g, share, nil) && p.fits(g, load{}, load{}.with(&d)) {
			rooms++
		}
	}
	return rooms
}

func (p *planner) eachAsksForOne() bool {
	return !slices.ContainsFunc(p.todo, func(t task) bool { return len(t.shares) > 1 })
}

func (p *planner) mayDivide() bool {
	return slices.ContainsFunc(p.todo, func(t task) bool {
		return slices.ContainsFunc(t.shares, func(s request.Share) bool { return s.SplitPPM != 0 })
	})
}

// place finds GPUs for the n-th task and all later tasks.
func (p *planner) place(n int) bool {
	if n == len(p.todo) {
		return !p.counted || p.withinQuota()
	}
	return p.placeShare(step{task: n}, p.preferred(n), 0)
}

// placeShare finds GPUs for one share and all later shares. A share equal to its
// predecessor starts at from, after the predecessor's GPU: permutations of equal shares
// need no try.
func (p *planner) placeShare(s step, order []int, from int) bool {
	t := p.todo[s.task]
	if s.share == len(t.shares) {
		return p.place(s.task + 1)
	}
	if p.reached(s); s == p.hopeless {
		p.tries = 0
		return false
	}
	share := t.shares[s.share]
	if s.share == 0 || !equal(share, t.shares[s.share-1]) {
		from = 0
	}
	next := step{s.task, s.share + 1}
	for i := from; i < len(order) && p.tries > 0; i++ {
		if !p.take(t.container, order[i], share) {
			continue
		}
		if p.placeShare(next, order, i+1) {
			return true
		}
		p.giveBack(t.container, 1)
	}
	return p.split && share.SplitPPM != 0 && p.divide(s, order)
}

// divide spreads a share over several GPUs in order, and takes as much of each GPU as fits. The pieces
// are on no MIG device, and the Multi-Process Service serves all of their GPUs or none.
func (p *planner) divide(s step, order []int) bool {
	for _, mps := range []bool{false, true} {
		some := slices.DeleteFunc(slices.Clone(order), func(g int) bool { return p.cards[g].mps != mps || gpu.IsMIG(p.cards[g].UUID) })
		if len(some) > 0 && p.divideOver(s, some, order) {
			return true
		}
	}
	return false
}

// divideOver spreads a share over some GPUs, and finds GPUs in order for all later shares. A rest that
// is smaller than the smallest piece results from rounding, and is dropped.
func (p *planner) divideOver(s step, some, order []int) bool {
	t := p.todo[s.task]
	share := t.shares[s.share]
	rest, pieces := share.Memory.PPM, 0
	for _, g := range some {
		piece := p.largest(t.container, g, share, rest)
		if piece > 0 && p.take(t.container, g, share.Piece(piece)) {
			rest -= piece
			pieces++
		}
	}
	if rest < share.SplitPPM && p.placeShare(step{s.task, s.share + 1}, order, 0) {
		return true
	}
	p.giveBack(t.container, pieces)
	return false
}

// largest returns the largest multiple of a share's smallest piece, at most rest, that fits on a card.
func (p *planner) largest(container, g int, share request.Share, rest uint32) uint32 {
	fits := func(ppm uint32) bool {
		ok := p.take(container, g, share.Piece(ppm))
		if ok {
			p.giveBack(container, 1)
		}
		return ok
	}
	unit := share.SplitPPM
	units := rest / unit
	if units == 0 || fits(units*unit) {
		return units * unit
	}
	return unit * uint32(sort.Search(int(units-1), func(n int) bool { return !fits(uint32(n+1) * unit) }))
}

// limitOn returns the memory that a share may use of a GPU's usable memory. limitOn
// returns 0 if the limit does not exceed the reserved memory.
func limitOn(usable uint64, share request.Share) uint64 {
	if share.Limit == (request.Memory{}) {
		return 0
	}
	limit := min(share.Limit.On(usable), usable)
	if limit <= share.Memory.On(usable) {
		return 0
	}
	return limit
}

// maximumOn returns the MaximumPPM of a share on a card. Containers lend no time of an MPS card.
func maximumOn(c *card, share request.Share) uint32 {
	if c.mps {
		return 0
	}
	return share.MaximumPPM
}

// take adds a share on a card to a container, and reports whether the share fits on the card.
func (p *planner) take(container, g int, share request.Share) bool {
	p.tries--
	p.tried++
	held := &p.containers[container].Devices
	if p.tries < 0 || !p.eligible(g, share, *held) {
		return false
	}
	before := p.columns[g].load()
	*held = append(*held, p.device(g, share))
	p.taken = append(p.taken, g)
	p.columns[g].add(p.containers, container)
	if p.fits(g, before, p.columns[g].load()) {
		p.rank(g)
		return true
	}
	p.giveBack(container, 1)
	return false
}

// device returns the allocation of a share on a card.
func (p *planner) device(g int, share request.Share) Device { return p.cards[g].device(share) }

// device returns the allocation of a share on the card.
func (c *card) device(share request.Share) Device {
	return Device{
		UUID:           c.UUID,
		MemoryBytes:    share.Memory.On(c.usable),
		LimitBytes:     limitOn(c.usable, share),
		MemoryInCommon: share.Memory.Common,
		ComputePPM:     share.ComputePPM,
		MaximumPPM:     maximumOn(c, share),
		Slots:          share.Slots,
		Exclusive:      share.Exclusive,
		MPS:            c.mps,
	}
}

// giveBack removes the last devices of a container.
func (p *planner) giveBack(container, devices int) {
	held := &p.containers[container].Devices
	for range devices {
		g := p.taken[len(p.taken)-1]
		p.taken = p.taken[:len(p.taken)-1]
		*held = (*held)[:len(*held)-1]
		p.columns[g].remove(p.containers, container)
		p.rank(g)
	}
}

// eligible reports whether a share may be on a card, even if the card has no room. The processes of
// a container that is a client of the Multi-Process Service see only the GPUs that the service
// serves. A process uses at most one MIG device, and no GPU beside it.
func (p *planner) eligible(g int, share request.Share, held []Device) bool {
	id := p.cards[g].UUID
	return p.cards[g].Healthy &&
		(len(share.GPUs) == 0 || slices.Contains(share.GPUs, id)) &&
		!slices.ContainsFunc(held, func(d Device) bool {
			return d.UUID == id || d.MPS != p.cards[g].mps || gpu.IsMIG(d.UUID) || gpu.IsMIG(id)
		})
}

// fits reports whether the pod's load on a card may change from before to now.
func (p *planner) fits(g int, before, now load) bool {
	others, usable := p.others[g], p.cards[g].usable
	all := others.beside(now)
	switch {
	case now.clash:
		return false
	case now == before:
		// The pod reuses its init container's load, because the pod already holds that load.
		return true
	case others.exclusive, now.exclusive && others.holders > 0:
		return false
	}
	return all.memoryOf(usable) <= usable &&
		all.compute <= request.Whole &&
		(now.slots == before.slots || all.slots <= p.slots) &&
		(now.clients == before.clients || all.clients <= p.clients)
}

// reached records the furthest step of the search.
func (p *planner) reached(s step) {
	if s.task > p.deepest.task || s.task == p.deepest.task && s.share > p.deepest.share {
		p.deepest = s
	}
}

func equal(a, b request.Share) bool {
	return a.Memory == b.Memory && a.Limit == b.Limit && a.ComputePPM == b.ComputePPM && a.MaximumPPM == b.MaximumPPM && a.Slots == b.Slots &&
		a.Exclusive == b.Exclusive && a.SplitPPM == b.SplitPPM && slices.Equal(a.GPUs, b.GPUs)
}
