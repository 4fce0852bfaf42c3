// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// This file decides the order in which a plan tries the GPUs.

// rank is the sort key of a card.
type rank struct {
	own, used     bool
	free, compute uint64
}

// rank recomputes the sort key of a card after a change of the pod's load on it.
func (p *planner) rank(g int) {
	own := p.columns[g].load()
	all, usable := p.others[g].beside(own), p.cards[g].usable
	p.ranks[g] = rank{
		own:     own.holders > 0,
		used:    all.holders > 0,
		free:    usable - min(all.memoryOf(usable), usable),
		compute: request.Whole - min(all.compute, request.Whole),
	}
}

// preferred returns the cards in the order in which the n-th task tries them. preferred
// starts from the previous task's order, which is nearly sorted if few cards changed.
func (p *planner) preferred(n int) []int {
	if p.within != nil {
		return p.within
	}
	if n > 0 {
		p.orders[n] = p.inOrder(append(p.orders[n][:0], p.orders[n-1]...))
	}
	return p.orders[n]
}

// inOrder sorts the cards in order, or all cards if order is nil. The cards that the pod is on come
// first, and cards with capacity that was freed just now come last. The policy, and then the index,
// decide the order within the groups. Packing prefers a GPU in use to an empty GPU, and among GPUs in
// use the GPU with the least free memory.
func (p *planner) inOrder(order []int) []int {
	if order == nil {
		for g := range p.cards {
			order = append(order, g)
		}
	}
	slices.SortFunc(order, func(x, y int) int {
		a, b := &p.ranks[x], &p.ranks[y]
		if c := cmp.Or(first(a.own, b.own), first(p.settles[y], p.settles[x])); c != 0 {
			return c
		}
		if p.spread {
			return cmp.Or(cmp.Compare(b.free, a.free), cmp.Compare(b.compute, a.compute), first(b.used, a.used), cmp.Compare(x, y))
		}
		return cmp.Or(first(a.used, b.used), cmp.Compare(a.free, b.free), cmp.Compare(a.compute, b.compute), cmp.Compare(x, y))
	})
	return order
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
