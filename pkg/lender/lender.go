// Package lender looks at what containers claim to use of their GPUs' time. It
// tells each of them what the others of its GPU were charged, beyond which it
// takes no time for theirs, and lends idle time among those whose maximum is
// above their guarantee: those that could use more get a lease on what nobody
// else needs, up to their maximum. A lease ends within milliseconds unless it is
// renewed, so that every container is back at its own guarantee soon after the
// lender has died.
package lender

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// busyTick is between two looks while a container has work: a guarantee
	// that was lent is given back at the next.
	busyTick = 4 * time.Millisecond
	// besideTick is between two looks while one has that lends nothing: what was charged
	// reaches the others of its GPU at the next.
	besideTick = 20 * time.Millisecond
	// idleTick is between two looks while none has, and quietTick where nothing is lent either:
	// what containers that begin at once are charged reaches them so much later.
	idleTick  = 50 * time.Millisecond
	quietTick = 200 * time.Millisecond
	// term is how long a lease holds if it is not renewed.
	term = 15 * time.Millisecond
	// refreshEvery is how often containers are looked for that nobody told of.
	refreshEvery = time.Second
)

// Options of a Lender.
type Options struct {
	// Dirs are the directories of the containers that may run now.
	Dirs func() []string
	// Recent, where set, tells whether they have changed lately, so that they
	// are to be looked at often. [Lender.Poke] is better, where it can be had.
	Recent func() bool
	// Given, where set, returns what a container was given, by its directory: asked if
	// its pages are of another release, and cannot be read.
	Given func(dir string) []limits.Device
	Log   *slog.Logger
}

// Lender lends among the containers of some directories.
type Lender struct {
	Options
	poke    chan struct{}
	tenants map[string]*tenant
	gpus    map[string][]*account // by UUID
	watched map[string]bool       // those whose containers are looked at
	refused map[string]string     // by directory: why it cannot be opened, to say it once
	last    time.Duration
	fresh   time.Duration // when the directories were last looked at
}

// New gives a lender that does nothing until Run.
func New(opts Options) *Lender {
	return &Lender{
		Options: opts, poke: make(chan struct{}, 1), tenants: map[string]*tenant{}, refused: map[string]string{},
	}
}

// Poke tells that the directories may be others than before. It never blocks.
func (l *Lender) Poke() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// Run lends until ctx ends, and then takes all leases back.
func (l *Lender) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.poke:
			l.fresh = 0
		}
		timer.Reset(l.step(limits.Monotonic()))
	}
}

// step looks once and tells how long to wait until the next time.
func (l *Lender) step(now time.Duration) time.Duration {
	age := now - l.fresh
	if l.fresh == 0 || age >= refreshEvery || age >= idleTick && l.Recent != nil && l.Recent() {
		l.refresh(now)
		l.fresh = now
	}
	if len(l.watched) == 0 {
		if l.Recent != nil {
			return idleTick
		}
		return refreshEvery
	}
	return l.look(now)
}

// look reads all claims, and writes all leases and what others were charged. It returns
// when to look next.
func (l *Lender) look(now time.Duration) time.Duration {
	passed := now - l.last
	l.last = now
	changed := false
	for _, t := range l.tenants {
		if !t.watched {
			continue
		}
		t.look(now, passed)
		changed = changed || t.changed()
	}
	if changed {
		l.fresh = 0 // the limits of one are others now
	}
	wait := quietTick
	for uuid := range l.watched {
		accounts := l.gpus[uuid]
		lend(accounts)
		beside(accounts)
		wait = min(wait, nextLook(accounts))
	}
	for _, t := range l.tenants {
		if t.watched {
			t.grant(now)
		}
	}
	return wait
}

// nextLook returns how soon the lender looks at the containers of a GPU again.
func nextLook(accounts []*account) time.Duration {
	wait := quietTick
	for _, a := range accounts {
		switch {
		case a.shares() && a.busy:
			return busyTick
		case a.busy:
			wait = besideTick
		case a.shares():
			wait = min(wait, idleTick)
		}
	}
	return wait
}

// refresh finds out which containers there are, and tells each what others may have.
func (l *Lender) refresh(now time.Duration) {
	dirs := map[string]bool{}
	for _, dir := range l.Dirs() {
		dirs[dir] = true
	}
	for dir, t := range l.tenants {
		if !dirs[dir] || t.stale() {
			l.forget(dir, t)
		}
	}
	for dir := range dirs {
		if l.tenants[dir] == nil {
			l.open(dir)
		}
	}
	for dir := range l.refused {
		if !dirs[dir] {
			delete(l.refused, dir)
		}
	}
	l.gpus, l.watched = map[string][]*account{}, map[string]bool{}
	for _, t := range l.tenants {
		for i, uuid := range t.uuids {
			l.gpus[uuid] = append(l.gpus[uuid], t.accounts[i])
		}
	}
	for uuid, accounts := range l.gpus {
		if isWatched(accounts) {
			l.watched[uuid] = true
		}
		beside(accounts)
	}
	for _, t := range l.tenants {
		t.watched = slices.ContainsFunc(t.uuids, func(uuid string) bool { return l.watched[uuid] })
		t.grant(now)
	}
}

// isWatched reports whether the lender looks at the containers of a GPU: one of them lends time,
// or one has a limit on time and there are others.
func isWatched(accounts []*account) bool {
	return slices.ContainsFunc(accounts, func(a *account) bool { return a.shares() || a.metered && len(accounts) > 1 })
}

func (l *Lender) close() {
	for dir, t := range l.tenants {
		l.forget(dir, t)
	}
}
