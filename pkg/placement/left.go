// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"maps"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// leftTries bounds the total tries of the searches of Left. Beyond the bound, searches do not
// backtrack.
const leftTries = 4 * maxTries

// Left returns the remaining capacity of each healthy GPU, by UUID, after placing the coming pods.
// Coming pods are pods of the node that have no container yet. Left places the pods in the given
// order by the current rules. Left ignores pods that find no room or whose search exceeds its
// bound. Left omits GPUs that a container holds exclusively, and GPUs whose MPS server can serve no
// further container. Left does not change the ledger.
func (l *Ledger) Left(coming []request.Pod) map[string]request.Left {
	shadow := l.shadow()
	shadow.place(coming)
	left := make(map[string]request.Left)
	for i, taken := range shadow.loads() {
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

// place places pods in a shadow ledger as far as they find room. place returns the number
// of tries.
func (l *Ledger) place(coming []request.Pod) (tried int) {
	for _, pod := range coming {
		if _, known := l.pods[pod.UID]; known || l.remembered(pod) != nil {
			continue
		}
		p := l.planner(pod)
		// Beyond the bound, a search has just enough tries to succeed without backtracking.
		if p.solve(max(min(maxTries, leftTries-tried), len(p.todo))) {
			l.hold(pod.UID, p.containers)
		}
		tried += p.tried
	}
	return tried
}

// shadow returns a copy of the ledger for trial placements. The copy shares the
// allocations, which plan never modifies.
func (l *Ledger) shadow() *Ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Ledger{
		config: l.config, cards: l.cards, pods: maps.Clone(l.pods), taken: maps.Clone(l.taken), refused: maps.Clone(l.refused),
		releases: maps.Clone(l.releases), now: l.now,
	}
}
