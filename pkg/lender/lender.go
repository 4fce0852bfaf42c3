// Package lender lends idle time of GPUs among containers whose limit is a
// guarantee: it looks at what each of them claims to use and gives those that
// could use more a lease on what nobody else needs. A lease ends within
// milliseconds unless it is renewed, so that every container is back at its own
// guarantee soon after the lender has died.
package lender

import (
	"context"
	"log/slog"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// busyTick is between two looks while a container has work: a guarantee
	// that was lent is given back at the next.
	busyTick = 4 * time.Millisecond
	// idleTick is between two looks while none has.
	idleTick = 50 * time.Millisecond
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
	Log    *slog.Logger
}

// Lender lends among the containers of some directories.
type Lender struct {
	Options
	poke    chan struct{}
	tenants map[string]*tenant
	gpus    map[string][]*account // those with a container that shares
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
		l.refresh()
		l.fresh = now
	}
	if len(l.gpus) == 0 {
		return refreshEvery
	}
	if l.look(now) {
		return busyTick
	}
	return idleTick
}

// look reads all claims and writes all leases. It tells whether anybody is busy.
func (l *Lender) look(now time.Duration) (busy bool) {
	passed := now - l.last
	l.last = now
	changed := false
	for _, t := range l.tenants {
		if !t.shares {
			continue
		}
		t.look(now, passed)
		changed = changed || t.changed()
	}
	if changed {
		l.fresh = 0 // the limits of one are others now
	}
	for _, accounts := range l.gpus {
		lend(accounts)
		for _, a := range accounts {
			busy = busy || a.share && a.busy
		}
	}
	for _, t := range l.tenants {
		t.grant(now + term)
	}
	return busy
}

// refresh finds out which containers there are.
func (l *Lender) refresh() {
	dirs := map[string]bool{}
	for _, dir := range l.Dirs() {
		dirs[dir] = true
	}
	for dir, t := range l.tenants {
		if !dirs[dir] || !t.pages.Current() || t.changed() {
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
	l.gpus = sharedGPUs(l.tenants)
}

func (l *Lender) close() {
	for dir, t := range l.tenants {
		l.forget(dir, t)
	}
}

// sharedGPUs are the accounts of those GPUs on which somebody shares.
func sharedGPUs(tenants map[string]*tenant) map[string][]*account {
	gpus, shared := map[string][]*account{}, map[string]bool{}
	for _, t := range tenants {
		for i, uuid := range t.uuids {
			gpus[uuid] = append(gpus[uuid], t.accounts[i])
			shared[uuid] = shared[uuid] || t.accounts[i].share
		}
	}
	for uuid := range gpus {
		if !shared[uuid] {
			delete(gpus, uuid)
		}
	}
	return gpus
}
