// SPDX-License-Identifier: Apache-2.0

// Package lender lends idle GPU time between containers. The lender reads the use that containers
// claim, and reports to each container the charge of the other containers of its GPU. The
// container's interposer attributes no more than the reported charge to other containers. A
// container with a maximum above its guarantee lends and borrows. If the container is hungry, it
// gets a lease on unneeded time, up to its maximum. A lease ends within milliseconds unless the
// lender renews it. If the lender dies, every container soon returns to its guarantee.
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
	// besideTick is the time between two checks while only containers that lend nothing have work.
	// The other containers of a GPU get the charge of this work at the next check.
	besideTick = 20 * time.Millisecond
	// idleTick is the time between two checks while no container has work, and quietTick the time
	// while, in addition, no container lends. The first charges of a container that starts to work
	// reach other containers with a delay of at most this time.
	idleTick  = 50 * time.Millisecond
	quietTick = 200 * time.Millisecond
	// term is the duration of a lease that the lender does not renew.
	term = 15 * time.Millisecond
	// refreshEvery is the interval at which the lender searches for containers that no Poke
	// announced.
	refreshEvery = time.Second
)

// Options configures a Lender.
type Options struct {
	// Dirs returns the directories of the containers that may be running.
	Dirs func() []string
	// Recent, if set, reports whether the directories have changed recently. Run then searches the
	// directories often. Prefer [Lender.Poke] where possible.
	Recent func() bool
	// Given, if set, returns a container's allocation by the container's directory. The lender
	// calls Given if the container's pages are unreadable, like pages of another release.
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

// step checks once and returns the time until the next check.
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

// look reads all claims, and writes all leases and charges of others. look returns the time until
// the next check.
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

// nextLook returns the time until the next check of a GPU's containers.
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

// isWatched reports whether the lender watches the containers of a GPU. The lender watches a GPU if
// a container lends time, or if a container with a limit on time shares the GPU.
func isWatched(accounts []*account) bool {
	return slices.ContainsFunc(accounts, func(a *account) bool { return a.shares() || a.metered && len(accounts) > 1 })
}

func (l *Lender) close() {
	for dir, t := range l.tenants {
		l.forget(dir, t)
	}
}
