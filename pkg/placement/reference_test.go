// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// TestPlansAsTheReference compares the planner with the reference below, on random
// nodes that fill up. Some containers of the pods already hold GPUs.
func TestPlansAsTheReference(t *testing.T) {
	found, none, open := 0, 0, 0
	for seed := range 2 * runs {
		w := newWorld(seed)
		l := New(w.gpus(), w.config())
		for i := range 20 {
			p := w.pod(fmt.Sprint("pod", i))
			if i > 0 && w.IntN(4) == 0 {
				w.restore(t, l, p)
			}
			var got []Allocation
			plan, err := l.plan(p)
			if err == nil {
				got = plan.containers
			}
			want, wantErr, finished := referencePlan(l, p)
			switch {
			case !finished:
				open++
			case wantErr != nil:
				none++
			default:
				found++
			}
			if !finished && wantErr != nil {
				continue // the reference exceeded its tries
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d, pod %d: %s", seed, i, diff)
			}
			if diff := gocmp.Diff(asNoRoom(wantErr), asNoRoom(err)); diff != "" {
				t.Fatalf("seed %d, pod %d: %s", seed, i, diff)
			}
			if err == nil {
				l.hold(p.UID, got)
			}
			if w.IntN(3) == 0 {
				l.Release(fmt.Sprint("pod", w.IntN(i+1)))
			}
		}
	}
	if found < runs || none < runs {
		t.Errorf("%d plans, %d refusals, %d searches given up: the test tests nothing", found, none, open)
	}
}

// restore records a possible earlier allocation of one of the pod's containers.
func (w world) restore(t *testing.T, l *Ledger, p request.Pod) {
	t.Helper()
	position := w.IntN(len(p.Containers))
	a := blank(p, position)
	for range 1 + w.IntN(2) {
		a.Devices = append(a.Devices, Device{
			UUID: fmt.Sprint("GPU-", w.IntN(4)), MemoryBytes: w.Uint64N(8) * gib, ComputePPM: w.Uint32N(4) * 100_000,
			Slots: w.IntN(2), Exclusive: w.IntN(10) == 0, MemoryInCommon: w.IntN(10) == 0,
		})
	}
	if err := l.Restore(a); err != nil {
		t.Fatal(err)
	}
}

func asNoRoom(err error) *NoRoomError {
	var none *NoRoomError
	errors.As(err, &none)
	return none
}

// referencePlan is a slow version of plan that computes every load anew. referencePlan also reports
// whether the search was complete.
func referencePlan(l *Ledger, pod request.Pod) ([]Allocation, error, bool) {
	p := reference{
		cards:   l.cards,
		others:  referenceLoads(l, pod.UID),
		slots:   l.config.Node.SlotsPerGPU,
		clients: l.clients(),
		spread:  pod.Policy == config.PlaceSpread || pod.Policy == "" && l.config.Placement.Policy == config.PlaceSpread,
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
	if p.solve() {
		return p.containers, nil, !p.gaveUp
	}
	failed := p.todo[p.deepest.task]
	return nil, &NoRoomError{
		Namespace: pod.Namespace,
		Pod:       pod.Name,
		Container: p.containers[failed.container].Container,
		Share:     failed.shares[p.deepest.share],
		GPUs:      len(failed.shares),
		Free:      l.free(),
	}, !p.gaveUp
}

// referenceLoads returns the load on each card of all pods except one.
func referenceLoads(l *Ledger, except string) []load {
	taken := make([]load, len(l.cards))
	for uid, h := range l.pods {
		if uid == except {
			continue
		}
		for i := range l.cards {
			taken[i] = taken[i].beside(referenceLoad(h.containers, l.cards[i].UUID))
			taken[i].clash = false // only the pod's own clash counts
		}
	}
	return taken
}

// referenceLoad returns a pod's load on one GPU during its lifetime.
func referenceLoad(containers []Allocation, uuid string) load {
	var running, top load
	for _, c := range containers {
		now := running
		for _, d := range c.Devices {
			if d.UUID == uuid {
				now = now.with(&d)
			}
		}
		top = top.peak(now)
		if c.Kind != request.Init {
			running = now
		}
	}
	return top
}

// referenceTries bounds the tries of a search.
const referenceTries = 4096

// reference searches for GPUs for the containers of one pod.
type reference struct {
	cards  []card
	others []load // the load of the other pods on each card
	slots  int
	// clients is the number of containers that the Multi-Process Service serves on a
	// card.
	clients int
	spread  bool

	containers []Allocation // of the pod, in the order of its spec
	todo       []task
	// within, if not nil, restricts the search to these cards.
	within []int
	// split allows the division of shares that permit it.
	split   bool
	tries   int
	gaveUp  bool
	deepest step // the furthest step reached, for the error
}

// solve runs up to three searches. If each container requests at most one GPU, the first search
// tries one GPU for all containers. The second search tries any GPUs, and the third search divides
// shares.
func (p *reference) solve() bool {
	if p.eachAsksForOne() {
		for _, g := range p.preferred() {
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

func (p *reference) attempt() bool {
	p.tries = referenceTries
	return p.place(0)
}

func (p *reference) eachAsksForOne() bool {
	return !slices.ContainsFunc(p.todo, func(t task) bool { return len(t.shares) > 1 })
}

func (p *reference) mayDivide() bool {
	return slices.ContainsFunc(p.todo, func(t task) bool {
		return slices.ContainsFunc(t.shares, func(s request.Share) bool { return s.SplitPPM != 0 })
	})
}

// place finds GPUs for the n-th task and all later tasks.
func (p *reference) place(n int) bool {
	if n == len(p.todo) {
		return true
	}
	return p.placeShare(step{task: n}, p.preferred(), 0)
}

// placeShare finds GPUs for one share and all later shares. A share equal to its
// predecessor starts at from, after the predecessor's GPU: permutations of equal
// shares need no try.
func (p *reference) placeShare(s step, order []int, from int) bool {
	t := p.todo[s.task]
	if s.share == len(t.shares) {
		return p.place(s.task + 1)
	}
	p.reached(s)
	share := t.shares[s.share]
	if s.share == 0 || !equal(share, t.shares[s.share-1]) {
		from = 0
	}
	next := step{s.task, s.share + 1}
	for i := from; i < len(order); i++ {
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

// divide spreads a share over several GPUs in order, and takes as much of each GPU as fits.
func (p *reference) divide(s step, order []int) bool {
	t := p.todo[s.task]
	share := t.shares[s.share]
	rest, pieces := share.Memory.PPM, 0
	for _, g := range order {
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
func (p *reference) largest(container, g int, share request.Share, rest uint32) uint32 {
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

// take allocates a share on a card to a container, if the share fits on the card.
func (p *reference) take(container, g int, share request.Share) bool {
	p.tries--
	p.gaveUp = p.gaveUp || p.tries < 0
	card, held := p.cards[g], &p.containers[container].Devices
	if p.tries < 0 || !p.eligible(g, share, *held) {
		return false
	}
	before := referenceLoad(p.containers, card.UUID)
	*held = append(*held, Device{
		UUID:           card.UUID,
		MemoryBytes:    share.Memory.On(card.usable),
		LimitBytes:     limitOn(card.usable, share),
		MemoryInCommon: share.Memory.Common,
		ComputePPM:     share.ComputePPM,
		MaximumPPM:     maximumOn(&card, share),
		Slots:          share.Slots,
		Exclusive:      share.Exclusive,
		MPS:            card.mps,
	})
	if p.fits(g, before, referenceLoad(p.containers, card.UUID)) {
		return true
	}
	p.giveBack(container, 1)
	return false
}

func (p *reference) giveBack(container, devices int) {
	held := &p.containers[container].Devices
	*held = (*held)[:len(*held)-devices]
}

// eligible reports whether a share may be on a card, even if the card has no room. The processes of
// a container that is a client of the Multi-Process Service see only the GPUs that the service
// serves.
func (p *reference) eligible(g int, share request.Share, held []Device) bool {
	id := p.cards[g].UUID
	return p.cards[g].Healthy &&
		(p.within == nil || slices.Contains(p.within, g)) &&
		(len(share.GPUs) == 0 || slices.Contains(share.GPUs, id)) &&
		!slices.ContainsFunc(held, func(d Device) bool {
			return d.UUID == id || d.MPS != p.cards[g].mps || gpu.IsMIG(d.UUID) || gpu.IsMIG(id)
		})
}

// fits reports whether the pod's load on a card may change from before to now.
func (p *reference) fits(g int, before, now load) bool {
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

// preferred returns the cards by preference. The cards that the pod is on come first. The policy,
// and then the index, decide the order within the two groups. Packing prefers a GPU in use to an
// empty GPU, and among GPUs in use the GPU with the least free memory.
func (p *reference) preferred() []int {
	type rank struct {
		own, used     bool
		free, compute uint64
	}
	ranks := make([]rank, len(p.cards))
	order := make([]int, len(p.cards))
	for g, c := range p.cards {
		own := referenceLoad(p.containers, c.UUID)
		all := p.others[g].beside(own)
		ranks[g] = rank{
			own:     own.holders > 0,
			used:    all.holders > 0,
			free:    c.usable - min(all.memoryOf(c.usable), c.usable),
			compute: request.Whole - min(all.compute, request.Whole),
		}
		order[g] = g
	}
	slices.SortStableFunc(order, func(x, y int) int {
		a, b := ranks[x], ranks[y]
		if c := first(a.own, b.own); c != 0 {
			return c
		}
		if p.spread {
			return cmp.Or(cmp.Compare(b.free, a.free), cmp.Compare(b.compute, a.compute), first(b.used, a.used))
		}
		return cmp.Or(first(a.used, b.used), cmp.Compare(a.free, b.free), cmp.Compare(a.compute, b.compute))
	})
	return order
}

// reached records the furthest step of the search.
func (p *reference) reached(s step) {
	if s.task > p.deepest.task || s.task == p.deepest.task && s.share > p.deepest.share {
		p.deepest = s
	}
}
