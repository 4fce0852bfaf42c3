package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// TestPlansAsTheReference holds the planner against the reference below, over random
// nodes that fill up, with pods of which some containers hold something already.
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
			got, err := l.plan(p)
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
				continue // the reference gave up
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

// restore enters what one of the pod's containers may have been given before.
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

// referencePlan is plan, slowly: everything is counted anew whenever it is needed. It
// also reports whether the search came to its end.
func referencePlan(l *Ledger, pod request.Pod) ([]Allocation, error, bool) {
	p := reference{
		cards:   l.cards,
		others:  referenceLoads(l, pod.UID),
		slots:   l.config.Node.SlotsPerGPU,
		clients: l.clients(),
		spread:  l.spread,
	}
	for _, a := range l.pods[pod.UID].containers {
		p.containers = append(p.containers, clone(a))
	}
	for i, c := range pod.Containers {
		if _, placed := find(p.containers, c.Name); asks(c) && !placed {
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
		Free:      l.free(),
	}, !p.gaveUp
}

// referenceLoads is what the pods other than one take of each card.
func referenceLoads(l *Ledger, except string) []load {
	taken := make([]load, len(l.cards))
	for uid, h := range l.pods {
		if uid == except {
			continue
		}
		for i := range l.cards {
			taken[i] = taken[i].beside(referenceLoad(h.containers, l.cards[i].UUID))
			taken[i].clash = false // nobody's affair but the pod's own
		}
	}
	return taken
}

// referenceLoad is what a pod takes of one GPU while it lives.
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

// referenceTries is how many tries a search may take.
const referenceTries = 4096

// reference searches GPUs for the containers of one pod.
type reference struct {
	cards  []card
	others []load // what the other pods take of each card
	slots  int
	// clients is how many containers the Multi-Process Service serves on a card.
	clients int
	spread  bool

	containers []Allocation // of the pod, in the spec's order
	todo       []task
	// within, when not nil, are the only cards that may be used.
	within []int
	// split allows shares to be divided that say so.
	split   bool
	tries   int
	gaveUp  bool
	deepest step // the furthest that the search came, for the error
}

// solve tries one GPU for all containers first, where each asks for one or
// less; then any GPUs; then to divide shares.
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

// place finds GPUs for the tasks from the n-th on.
func (p *reference) place(n int) bool {
	if n == len(p.todo) {
		return true
	}
	return p.placeShare(step{task: n}, p.preferred(), 0)
}

// placeShare finds a GPU for one share and all that come after it. Of equal
// shares, one takes a GPU later in order than the one before it, which begins
// at from: their permutations would be tried in vain.
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

// divide spreads a share over several GPUs, as much on each as fits, in order.
func (p *reference) divide(s step, order []int) bool {
	t := p.todo[s.task]
	share := t.shares[s.share]
	rest, pieces := share.Memory.PPM, 0
	for _, g := range order {
		piece := p.largest(t.container, g, share, rest)
		if piece > 0 && p.take(t.container, g, pieceOf(share, piece)) {
			rest -= piece
			pieces++
		}
	}
	if rest == 0 && p.placeShare(step{s.task, s.share + 1}, order, 0) {
		return true
	}
	p.giveBack(t.container, pieces)
	return false
}

// largest is the largest part of a share, at most rest, that fits on a card:
// all of rest, or a multiple of the unit in which it may be divided.
func (p *reference) largest(container, g int, share request.Share, rest uint32) uint32 {
	fits := func(ppm uint32) bool {
		ok := p.take(container, g, pieceOf(share, ppm))
		if ok {
			p.giveBack(container, 1)
		}
		return ok
	}
	if rest == 0 || fits(rest) {
		return rest
	}
	unit := share.SplitPPM
	units := sort.Search(int((rest-1)/unit), func(n int) bool { return !fits(uint32(n+1) * unit) })
	return uint32(units) * unit
}

// take gives a share on a card to a container, if it fits there.
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
		MaximumPPM:     maximumOn(card, share),
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

// eligible tells whether a share may be on a card at all, room or not. Processes
// that are clients of the Multi-Process Service see no other GPUs than those that
// it serves.
func (p *reference) eligible(g int, share request.Share, held []Device) bool {
	id := p.cards[g].UUID
	return p.cards[g].Healthy &&
		(p.within == nil || slices.Contains(p.within, g)) &&
		(len(share.GPUs) == 0 || slices.Contains(share.GPUs, id)) &&
		!slices.ContainsFunc(held, func(d Device) bool { return d.UUID == id || d.MPS != p.cards[g].mps })
}

// fits tells whether the pod may take now of a card where it took before.
func (p *reference) fits(g int, before, now load) bool {
	others, usable := p.others[g], p.cards[g].usable
	all := others.beside(now)
	switch {
	case now.clash:
		return false
	case now == before:
		// Used again after an init container: held already, come what may.
		return true
	case others.exclusive, now.exclusive && others.holders > 0:
		return false
	}
	return all.memoryOf(usable) <= usable &&
		all.compute <= request.Whole &&
		(now.slots == before.slots || all.slots <= p.slots) &&
		(now.clients == before.clients || all.clients <= p.clients)
}

// preferred lists the cards as they should be tried: first those that the pod
// is on, then by the policy, then by index. Packing fills a GPU that is in use
// before an empty one, and of those the one with the least memory left.
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

// reached remembers how far the search came.
func (p *reference) reached(s step) {
	if s.task > p.deepest.task || s.task == p.deepest.task && s.share > p.deepest.share {
		p.deepest = s
	}
}
