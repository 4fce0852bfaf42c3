// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"cmp"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// linger is the time for which a container counts as busy after its last launch. A container
	// may pause for linger between two launches and keep its guarantee.
	linger = 6 * time.Millisecond
	// slackMost bounds the slack of a long launch, which is half of the launch's estimated time.
	// Running work and time slices of other containers delay a launch.
	slackMost = 20 * time.Millisecond
	// hungryBelow is the balance below which a container could use more than its guarantee. Savings
	// of the guarantee exceed hungryBelow, and savings of lent time do not.
	hungryBelow = 3 * time.Millisecond
	// hungryFor is the time for which a container counts as waiting after the last read of its
	// allowance. A waiting container reads its allowance every 20 ms.
	hungryFor = 25 * time.Millisecond
	// most bounds the values that a container claims.
	most = 10 * time.Second
)

// account is the lender's state of one container on one GPU. The state derives from pages that the
// container's processes write, so the claims on the pages may be false. If a container falsely
// claims work, the lender does not lend the container's own time. A false claim borrows no more
// time than real work. A container that hides work only lends its own time.
type account struct {
	guarantee uint32 // parts per million
	maximum   uint32 // largest part with others' idle time, at least guarantee
	metered   bool   // the container has a limit on time

	known   bool // last contains a claim
	last    limits.Allowance
	backlog time.Duration // work that cannot have run yet
	slack   time.Duration // by how much the last work may exceed its estimated time
	worked  time.Duration // time of the last work
	looked  time.Duration // time of the last fill of the allowance
	busy    bool          // the container needs its guarantee
	hungry  bool          // the container could use more
	lease   uint32        // part until the next check; 0: the guarantee
	beside  bool          // another container has a lease until the next check

	room       time.Duration // the charge that count still accepts
	unreported time.Duration // charge beyond room
	charged    time.Duration // charge to report to the others
	others     time.Duration // the others' charge to report to the container
	othersPPM  uint32        // the others' part of the GPU's time
}

// shares reports whether the container lends and borrows. The maximum alone decides: a container
// that may not borrow does not lend either.
func (a *account) shares() bool { return a.maximum > a.guarantee }

// rate returns the part of the GPU's time that the container may use.
func (a *account) rate() uint32 { return max(a.guarantee, a.lease) }

// look records the container's claim at the time now. passed is the time since the last check.
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

// ran returns the part of the container's work that has certainly run since the last check. While
// another container has a lease, the estimate is uncertain: the hardware may grant that container
// as much time as all others together. If the lender counted delayed work as done, it would
// continue to lend and delay the work forever.
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

// lend decides the part of each container of one GPU until the next check. A busy container, and a
// container whose maximum is its guarantee, keep their time, even unused time. The hungry
// containers get the remaining time in proportion to their guarantees. If a container reaches its
// maximum, the other hungry containers get its remainder. The leases and guarantees of a GPU never
// exceed the whole GPU.
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
	// lend serves the container that reaches its maximum first before all others, so that the
	// others get its remainder.
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
