package lender

import (
	"cmp"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// linger is how long a container counts as busy after it last gave the GPU
	// work: so long it may think between two launches and keep its guarantee.
	linger = 6 * time.Millisecond
	// slackMost bounds by how much more a long piece of work may outlast what it was
	// reckoned to take, half of it, as others' work under way and slices delay it.
	slackMost = 20 * time.Millisecond
	// hungryBelow is the balance below which a container could use more than
	// it has. What it saves up of its own time is more, of lent time less.
	hungryBelow = 3 * time.Millisecond
	// hungryFor is how long after it last looked at its allowance a container
	// may be waiting for it: who waits looks every 20 ms.
	hungryFor = 25 * time.Millisecond
	// most bounds what is believed of a container's claims.
	most = 10 * time.Second
)

// account is what the lender knows of one container on one GPU. It follows
// from what the container's processes write, who may lie: who claims work keeps
// its own time from being lent, and is lent no more than one that has it; who
// hides work lends its own time away.
type account struct {
	guarantee uint32 // parts per million
	maximum   uint32 // …which it may have of what others leave idle: the guarantee or more
	metered   bool   // it has a limit on time

	known   bool // `last` was read
	last    limits.Allowance
	backlog time.Duration // work that cannot have run yet
	slack   time.Duration // how much longer than reckoned the last of it may take
	worked  time.Duration // when there was work last
	looked  time.Duration // when somebody last filled the allowance
	busy    bool          // it needs its guarantee
	hungry  bool          // it could use more
	lease   uint32        // what it may use until the next look; 0: its guarantee
	beside  bool          // another has a lease until then

	room      time.Duration // up to which it is believed what it was charged
	untold    time.Duration // what it was charged beyond that
	charged   time.Duration // what it was charged and others are to be told of
	others    time.Duration // what it is to be told of others
	othersPPM uint32        // …and what part of the GPU's time they may have
}

// shares reports whether the container lends and borrows. Its maximum decides that alone: who
// may have nothing of others' time keeps its own.
func (a *account) shares() bool { return a.maximum > a.guarantee }

// rate is the part of the GPU's time that the container may use.
func (a *account) rate() uint32 { return max(a.guarantee, a.lease) }

// look takes in what the container claims at a time, `passed` after the last
// look.
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

// ran is what of the container's work has surely run meanwhile. Beside one that has a
// lease, which the hardware gives as much of the GPU as all others, nothing is sure:
// who took such work for done would lend on, and delay it for ever.
func (a *account) ran(passed time.Duration) time.Duration {
	if a.beside {
		return 0
	}
	return part(passed, a.rate())
}

// missed is a look at which the container's claims could not be read. It may have used its part.
func (a *account) missed(passed time.Duration) {
	a.busy, a.hungry = false, false
	a.count(part(passed, a.entitled()), passed)
}

// balance is the container's allowance now, without what was lent.
func (a *account) balance(now time.Duration) time.Duration {
	since := min(max(now-a.last.Filled, 0), most)
	return bounded(a.last.Balance) + part(since, a.guarantee)
}

func bounded(ns int64) time.Duration { return min(max(time.Duration(ns), -most), most) }

// part is so many parts per million of a time of at most a few minutes.
func part(of time.Duration, ppm uint32) time.Duration {
	return of * time.Duration(ppm) / limits.NoComputeLimit
}

// lend decides what each container of one GPU may use until the next look. A
// container whose maximum is its guarantee keeps its time for itself, used or not.
// So does one that is busy. What is left is for those that could use it, in
// proportion to their guarantees; what one may not have, as it is at its maximum,
// goes to the others. The leases and guarantees of a GPU never add up to more than
// all.
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
	// Who comes to its maximum first is first: what it leaves is known to all others then.
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
