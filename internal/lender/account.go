// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"cmp"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// linger is how long a container counts as busy after its last launch. For so long a container
	// may pause between two launches and keep its guarantee.
	linger = 6 * time.Millisecond
	// slackMost bounds the slack of a long launch, which is half of its estimated time. Other
	// containers' running work and time slices delay a launch.
	slackMost = 20 * time.Millisecond
	// hungryBelow is the balance below which a container could use more than its guarantee. Savings
	// of the guarantee exceed hungryBelow, and savings of lent time do not.
	hungryBelow = 3 * time.Millisecond
	// hungryFor is how long after the last read of its allowance a container counts as waiting. A
	// waiting container reads the allowance every 20 ms.
	hungryFor = 25 * time.Millisecond
	// most bounds the values that a container claims.
	most = 10 * time.Second
)

// account is the lender's state of one container on one GPU. The account derives from the pages
// that the container's processes write, and their claims may be false. A false claim of work keeps
// the container's own time from being lent, and borrows no more than real work. A container that
// hides work only lends its own time.
type account struct {
	guarantee uint32 // parts per million
	maximum   uint32 // largest part with others' idle time, at least guarantee
	metered   bool   // the container has a limit on time

	known   bool // last was read
	last    limits.Allowance
	backlog time.Duration // work that cannot have run yet
	slack   time.Duration // how much longer than estimated the last work may take
	worked  time.Duration // time of the last work
	looked  time.Duration // time of the last fill of the allowance
	busy    bool          // the container needs its guarantee
	hungry  bool          // the container could use more
	lease   uint32        // part until the next check; 0: the guarantee
	beside  bool          // another container has a lease until the next check

	room      time.Duration // how much charge is accepted
	untold    time.Duration // charge beyond room
	charged   time.Duration // charge to report to the others
	others    time.Duration // the others' charge to report to the container
	othersPPM uint32        // the others' part of the GPU's time
}

// shares reports whether the container lends and borrows. The maximum alone decides: a container
// that may not borrow does not lend either.
func (a *account) shares() bool { return a.maximum > a.guarantee }

// rate returns the part of the GPU's time that the container may use.
func (a *account) rate() uint32 { return max(a.guarantee, a.lease) }

// look records the container's claim at a time, `passed` after the last check.
func (a *account) look(claim limits.Allowance, now, passed time.Duration) {
	spent := bounded(int64(claim.Spent - a.last.Spent))
	filled := claim.Filled != a.last.Filled
	first := !a.known
	a.known, a.last = true, claim
	if first {
		a.worked, a.looked = now-most, now-most
		return
	}
	a.count(spent, passed)
	a.backlog += spent - a.ran(passed)
	a.backlog = min(max(a.backlog, 0), most)
	if spent > 0 {
		a.slack = min(spent/2, slackMost)
	}
	if filled {
		a.looked = now
	}
	a.hungry = a.shares() && now-a.looked <= hungryFor && a.balance(now) < hungryBelow
	if spent != 0 || a.backlog > 0 || a.hungry {
		a.worked = now
	}
	a.busy = now-a.worked <= linger+a.slack
}

// ran returns the part of the container's work that has certainly run meanwhile. While another
// container has a lease, the estimate is uncertain: the hardware may grant the leased container as
// much time as all others together. If the lender counted delayed work as done, it would continue
// to lend and delay the work forever.
func (a *account) ran(passed time.Duration) time.Duration {
	if a.beside {
		return 0
	}
	return part(passed, a.rate())
}

// missed records a check at which the claims were unreadable. The container may have used its part.
func (a *account) missed(passed time.Duration) {
	a.busy, a.hungry = false, false
	a.count(part(passed, a.entitled()), passed)
}

// balance returns the container's current allowance, without lent time.
func (a *account) balance(now time.Duration) time.Duration {
	since := min(max(now-a.last.Filled, 0), most)
	return bounded(a.last.Balance) + part(since, a.guarantee)
}

func bounded(ns int64) time.Duration { return min(max(time.Duration(ns), -most), most) }

// part returns ppm parts per million of a time of at most a few minutes.
func part(of time.Duration, ppm uint32) time.Duration {
	return of * time.Duration(ppm) / limits.NoComputeLimit
}

// lend decides the part of each container of one GPU until the next check. A container whose
// maximum is its guarantee keeps its time, used or not, and so does a busy container. The rest goes
// to the hungry containers in proportion to their guarantees. A container at its maximum leaves its
// share of the rest to the others. The leases and guarantees of a GPU never exceed the whole GPU.
func lend(accounts []*account) {
	free, weights := int64(limits.NoComputeLimit), int64(0)
	var hungry []*account
	for _, a := range accounts {
		a.lease = 0
		if !a.shares() || a.busy {
			free -= int64(a.guarantee)
		}
		if a.hungry {
			hungry = append(hungry, a)
			weights += int64(a.guarantee)
		}
	}
	lends := free > 0 && len(hungry) > 0
	for _, a := range accounts {
		a.beside = lends && !a.hungry
	}
	if !lends {
		return
	}
	// The container that reaches its maximum first comes first, so that its remainder goes to all
	// others.
	slices.SortFunc(hungry, func(a, b *account) int {
		return cmp.Compare(uint64(a.maximum)*uint64(b.guarantee), uint64(b.maximum)*uint64(a.guarantee))
	})
	for _, a := range hungry {
		lent := min(free*int64(a.guarantee)/weights, int64(a.maximum-a.guarantee))
		a.lease = a.guarantee + uint32(lent)
		free -= lent
		weights -= int64(a.guarantee)
	}
}
