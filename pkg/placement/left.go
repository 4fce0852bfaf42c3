package placement

import (
	"maps"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// leftTries is how many tries the searches of Left may take together, before pods are only
// searched for in a straight way.
const leftTries = 4 * maxTries

// Left is what nobody has of each healthy GPU, by UUID, once the coming pods
// have theirs, too: those that the scheduler has sent here and of which no
// container has been created yet. They are placed in the given order, as they
// would be now; those that find no room, or for which the search is given up, are
// left out of account, and so are GPUs that somebody has alone, or whose MPS
// server can serve no more. The ledger does not change.
func (l *Ledger) Left(coming []request.Pod) map[string]request.Left {
	shadow := l.shadow()
	shadow.place(coming)
	left := make(map[string]request.Left)
	for i, taken := range shadow.loads("") {
		c := shadow.cards[i]
		if !c.Healthy || taken.exclusive || c.mps && taken.clients >= shadow.clients() {
			continue
		}
		left[c.UUID] = request.Left{
			Memory:     c.usable - min(taken.memoryOf(c.usable), c.usable),
			ComputePPM: uint32(request.Whole - min(taken.compute, request.Whole)),
			SlotsTaken: taken.slots,
			Held:       taken.holders > 0,
			Common:     taken.common,
			Bounded:    c.mps,
			Containers: shadow.clients() - taken.clients,
		}
	}
	return left
}

// place places pods on trial, as far as they find room, and returns how many tries it
// took.
func (l *Ledger) place(coming []request.Pod) (tried int) {
	for _, pod := range coming {
		if _, known := l.pods[pod.UID]; known || l.remembered(pod) != nil {
			continue
		}
		p := l.planner(pod)
		// The last ones find what is found without a wrong choice.
		if p.solve(max(min(maxTries, leftTries-tried), len(p.todo))) {
			l.hold(pod.UID, p.containers)
		}
		tried += p.tried
	}
	return tried
}

// shadow is a copy to try things on. Allocations are shared: plan changes
// none.
func (l *Ledger) shadow() *Ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Ledger{config: l.config, spread: l.spread, cards: l.cards, pods: maps.Clone(l.pods), taken: maps.Clone(l.taken), refused: maps.Clone(l.refused)}
}
