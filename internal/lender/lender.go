// SPDX-License-Identifier: Apache-2.0

// Package lender lends idle GPU time between containers. The lender reads the use that containers
// claim. The lender reports the charge of a GPU's other containers to each container. The
// container's interposer attributes no more than that charge to the others. Containers with a
// maximum above their guarantee lend and borrow: a hungry container gets a lease on unneeded time,
// up to its maximum. A lease ends within milliseconds unless it is renewed, so that every container
// returns to its guarantee soon after the lender has died.
package lender

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// busyTick is the time between two checks while a lending container has work. A lent guarantee
	// returns at the next check.
	busyTick = 4 * time.Millisecond
	// besideTick is the time between two checks while a container that lends nothing has work. The
	// other containers of its GPU receive its charge at the next check.
	besideTick = 20 * time.Millisecond
	// idleTick is the time between two checks while no container has work, and quietTick the time
	// if none lends either. The first charges of a container that starts to work are delayed by at
	// most this time.
	idleTick  = 50 * time.Millisecond
	quietTick = 200 * time.Millisecond
	// term is how long a lease lasts if it is not renewed.
	term = 15 * time.Millisecond
	// refreshEvery is how often the lender searches for containers that no Poke announced.
	refreshEvery = time.Second
)

// Options configures a Lender.
type Options struct {
	// Dirs returns the directories of the containers that may be running.
	Dirs func() []string
	// Recent, if set, reports whether the directories have changed lately, so that Run checks them
	// often. Prefer [Lender.Poke] where possible.
	Recent func() bool
	// Given, if set, returns a container's allocation by its directory. The lender calls it if the
	// container's pages are of another release and unreadable.
	Given func(dir string) []limits.Device
	Log   *slog.Logger
}

// Lender lends GPU time between the containers of some directories.
type Lender struct {
	Options
	poke    loop.Wakeup
	tenants map[string]*tenant
	gpus    map[string][]*account // by UUID
	watched map[string]bool       // the GPUs whose containers the lender watches
	refused loop.Failures         // failures to open containers, by directory
	last    time.Duration
	fresh   time.Duration // time of the last refresh
}

// New returns a lender that does nothing until Run.
func New(opts Options) *Lender {
	return &Lender{
		Options: opts, poke: loop.NewWakeup(), tenants: map[string]*tenant{},
	}
}

// Poke reports that the directories may have changed. Poke never blocks.
func (l *Lender) Poke() { l.poke.Signal() }

// Run lends until ctx ends, and then withdraws all leases.
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

// step checks once and returns how long to wait until the next check.
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

// look reads all claims, and writes all leases and charges of others. look returns how long to wait
// until the next check.
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
		l.fresh = 0 // the limits of a container have changed
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

// nextLook returns how long to wait until the next check of a GPU's containers.
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

// refresh updates the list of containers, and writes the others' parts to each container's page.
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

// isWatched reports whether the lender watches the containers of a GPU. The result is true if a
// container lends time, or if a container with a limit on time is not alone.
func isWatched(accounts []*account) bool {
	return slices.ContainsFunc(accounts, func(a *account) bool { return a.shares() || a.metered && len(accounts) > 1 })
}

func (l *Lender) close() {
	for dir, t := range l.tenants {
		l.forget(dir, t)
	}
}
