// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const ms = time.Millisecond

// full returns the claim of a container that has saved up too much time to be hungry.
func full(spent time.Duration) limits.Allowance {
	return limits.Allowance{Spent: uint64(spent), Balance: int64(hungryBelow)}
}

func TestAContainerIsIdleAtFirst(t *testing.T) {
	for _, booted := range []time.Duration{0, time.Hour} {
		a := account{guarantee: 500_000, maximum: limits.NoComputeLimit}
		claim := limits.Allowance{Spent: 7, Balance: -1, Filled: 7}
		a.look(claim, booted, 0)
		a.look(claim, booted+ms, ms)
		if a.busy || a.hungry {
			t.Errorf("%v after boot: busy is %t, hungry is %t", booted, a.busy, a.hungry)
		}
	}
}

// TestHowLongAContainerIsBusy checks that a container is busy for a while after its last launch,
// and longer after long work.
func TestHowLongAContainerIsBusy(t *testing.T) {
	for _, test := range []struct {
		name  string
		spent time.Duration
		want  time.Duration
	}{
		{"hardly any work", 1, 6 * ms},
		{"short work", 8 * ms, 10 * ms},
		{"long work", 40 * ms, 26 * ms},
		{"longer work", time.Second, 26 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			for after, want := range map[time.Duration]bool{test.want: true, test.want + 1: false} {
				a := account{guarantee: limits.NoComputeLimit, maximum: limits.NoComputeLimit}
				now := time.Hour
				a.look(full(0), now, 0)
				a.look(full(test.spent), now, time.Minute) // the work ran before this check
				a.look(full(test.spent), now+after, after)
				if a.busy != want {
					t.Errorf("%v after it, busy is %t", after, a.busy)
				}
			}
		})
	}
}

func TestWhoIsHungry(t *testing.T) {
	for _, test := range []struct {
		name    string
		maximum uint32
		balance time.Duration
		ago     time.Duration // since the process last read its allowance
		want    bool
	}{
		{"it has little left", limits.NoComputeLimit, 3*ms - 1, 0, true},
		{"it has enough left", limits.NoComputeLimit, 3 * ms, 0, false},
		{"it may have no more", 500_000, -time.Second, 0, false},
		{"it looked a while ago", limits.NoComputeLimit, -time.Second, 25 * ms, true},
		{"it looks no more", limits.NoComputeLimit, -time.Second, 25*ms + 1, false},
		{"it has earned little since", limits.NoComputeLimit, -7 * ms, 20*ms - 2, true},
		{"it has earned enough since", limits.NoComputeLimit, -7 * ms, 20 * ms, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := account{guarantee: 500_000, maximum: test.maximum}
			now := time.Hour
			a.look(limits.Allowance{}, now-test.ago-1, 0)
			claim := limits.Allowance{Balance: int64(test.balance), Filled: now - test.ago}
			a.look(claim, now-test.ago, 1)
			a.look(claim, now, test.ago)
			if a.hungry != test.want {
				t.Errorf("hungry is %t", a.hungry)
			}
		})
	}
}

// TestClaimsAreBounded checks that a claim counts for at most ten seconds.
func TestClaimsAreBounded(t *testing.T) {
	a := account{guarantee: limits.NoComputeLimit, maximum: limits.NoComputeLimit}
	a.look(full(0), time.Hour, 0)
	a.look(full(time.Minute), time.Hour, 0)
	if a.backlog != 10*time.Second {
		t.Errorf("a backlog of %v is believed", a.backlog)
	}
	a.look(full(time.Minute), time.Hour+10*time.Second, 10*time.Second)
	if a.backlog != 0 {
		t.Errorf("a backlog of %v is left", a.backlog)
	}
	for claimed, want := range map[time.Duration]time.Duration{time.Hour: 10 * time.Second, -time.Hour: -10 * time.Second, 5: 5} {
		if got := bounded(int64(claimed)); got != want {
			t.Errorf("bounded(%v) = %v, want %v", claimed, got, want)
		}
	}
}

// TestNothingIsLentOfAGPUInUse checks that, without idle time, no container has a lease, and no
// container counts as delayed by a lease.
func TestNothingIsLentOfAGPUInUse(t *testing.T) {
	hungry := &account{guarantee: 300_000, maximum: limits.NoComputeLimit, busy: true, hungry: true}
	capped := &account{guarantee: 700_000, maximum: 700_000}
	lend([]*account{hungry, capped})
	if hungry.lease != 0 || capped.lease != 0 || capped.beside {
		t.Errorf("leases on %d and %d ppm, beside is %t", hungry.lease, capped.lease, capped.beside)
	}
}

// nobody returns a lender without containers, and the number of its searches.
func nobody(recent func() bool) (*Lender, *atomic.Int32) {
	var looks atomic.Int32
	return New(Options{Dirs: func() []string { looks.Add(1); return nil }, Recent: recent}), &looks
}

func TestContainersAreLookedForInTime(t *testing.T) {
	recently := true
	recent := func() bool { return recently }
	for _, test := range []struct {
		name     string
		recent   func() bool
		recently bool
		after    time.Duration
		looks    int32
		wait     time.Duration
	}{
		{"not yet", nil, false, refreshEvery - 1, 1, refreshEvery},
		{"a second later", nil, false, refreshEvery, 2, refreshEvery},
		{"something was created, just now", recent, true, idleTick - 1, 1, idleTick},
		{"something was created", recent, true, idleTick, 2, idleTick},
		{"nothing was created", recent, false, refreshEvery - 1, 1, idleTick},
		{"nothing was created, a second later", recent, false, refreshEvery, 2, idleTick},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, looks := nobody(test.recent)
			recently = test.recently
			l.step(time.Hour)
			wait := l.step(time.Hour + test.after)
			if looks.Load() != test.looks || wait != test.wait {
				t.Errorf("looked %d times, want %d; the next look is in %v, want %v", looks.Load(), test.looks, wait, test.wait)
			}
		})
	}
}

// TestPoke checks that Poke makes the lender search at once.
func TestPoke(t *testing.T) {
	looked := make(chan time.Time)
	l := New(Options{Dirs: func() []string { looked <- time.Now(); return nil }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	before, soonest := <-looked, refreshEvery
	for range 5 { // in case this process did not run for a while
		l.Poke()
		now := <-looked
		before, soonest = now, min(soonest, now.Sub(before))
	}
	if soonest > refreshEvery/2 {
		t.Errorf("it looked %v later at the soonest", soonest)
	}
	cancel()
	for {
		select {
		case <-looked: // the next search may have begun before cancel
			continue
		case <-ended:
		}
		break
	}
}

func TestTheEndOfALenderTakesLeasesBack(t *testing.T) {
	c := newContainer(t, 300_000)
	l, _ := newLender(t, c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { l.Run(ctx); close(ended) }()
	err := eventually.Wait(10*time.Second, "the lender lends", func() bool {
		now := limits.Monotonic()
		c.claim(uint64(now), now) // the container works, and its allowance is empty
		lent, _ := c.lease()
		return lent != 0
	})
	cancel()
	<-ended
	if err != nil {
		t.Error(err)
	}
	if ppm, _ := c.lease(); ppm != 0 {
		t.Errorf("a lease on %d ppm outlived its lender", ppm)
	}
}

// TestWorkBesideALeaseIsNotTakenForDone checks that ran counts no work of a container while another
// container has a lease.
func TestWorkBesideALeaseIsNotTakenForDone(t *testing.T) {
	for beside, want := range map[bool]time.Duration{true: 40 * ms, false: 30 * ms} {
		a := account{guarantee: 500_000, maximum: limits.NoComputeLimit}
		a.look(full(0), time.Hour, 0)
		a.look(full(40*ms), time.Hour, 0)
		a.beside = beside
		a.look(full(40*ms), time.Hour+20*ms, 20*ms)
		if a.backlog != want {
			t.Errorf("beside is %t: %v have not run, want %v", beside, a.backlog, want)
		}
	}
}

// TestLoneContainersDisturbNobody checks that containers that need no checks do not stop the checks
// of other containers.
func TestLoneContainersDisturbNobody(t *testing.T) {
	pair := []container{newCapped(t, 300_000), newCapped(t, 600_000)}
	all := slices.Clone(pair)
	for i := range 20 {
		alone := container{t, t.TempDir()}
		uuid := gpu[:len(gpu)-2] + string(rune('a'+i%6)) + string(rune('0'+i/6))
		if err := limits.Create(alone.dir, []limits.Device{{UUID: uuid, MemoryBytes: 1, ComputePPM: 500_000}}); err != nil {
			t.Fatal(err)
		}
		all = append(all, alone)
	}
	l, _ := newLender(t, all...)
	now := time.Hour
	l.step(now)
	before, _, _ := pair[0].others()
	for range 10 {
		now += besideTick
		pair[1].claim(uint64(now-time.Hour), now)
		l.step(now)
	}
	if charged, _, _ := pair[0].others(); charged-before != 10*besideTick {
		t.Errorf("the page grew by %v, want %v", charged-before, 10*besideTick)
	}
}

// TestWhatAContainerHasEarned checks that a claim with a future time earns nothing, and that the
// container loses nothing.
func TestWhatAContainerHasEarned(t *testing.T) {
	for ago, want := range map[time.Duration]time.Duration{
		-time.Hour: 5, -1: 5, 0: 5, 1: 6, time.Second: time.Second + 5, 10 * time.Second: 10*time.Second + 5, time.Hour: 10*time.Second + 5,
	} {
		a := account{guarantee: limits.NoComputeLimit, last: limits.Allowance{Balance: 5, Filled: time.Hour}}
		if got := a.balance(time.Hour + ago); got != want {
			t.Errorf("%v after its claim, its balance is %v, want %v", ago, got, want)
		}
	}
}

// TestLeasesAndGuaranteesAddUpToTheGPU checks that lend lends all idle time, and no more.
func TestLeasesAndGuaranteesAddUpToTheGPU(t *testing.T) {
	for _, guarantees := range [][]uint32{{10_000, 10_000}, {1, 1}, {100_000, 300_000}, {200_000, 300_000, 500_000}, {1_000_000}} {
		var accounts []*account
		for _, g := range guarantees {
			accounts = append(accounts, &account{guarantee: g, maximum: limits.NoComputeLimit, busy: true, hungry: true})
		}
		lend(accounts)
		var sum uint32
		for _, a := range accounts {
			sum += a.rate()
		}
		if sum != limits.NoComputeLimit {
			t.Errorf("with guarantees of %d ppm, the containers may use %d ppm in total", guarantees, sum)
		}
	}
}

func TestHowSoonAGPUIsCheckedAgain(t *testing.T) {
	capped := func(busy bool) *account { return &account{guarantee: 300_000, maximum: 300_000, busy: busy} }
	shares := func(busy bool) *account { return &account{guarantee: 300_000, maximum: 600_000, busy: busy} }
	for _, test := range []struct {
		name     string
		accounts []*account
		want     time.Duration
	}{
		{"nobody lends or works", []*account{capped(false), capped(false)}, 200 * ms},
		{"somebody lends, nobody works", []*account{capped(false), shares(false), capped(false)}, 50 * ms},
		{"somebody works, nobody lends", []*account{capped(false), capped(true), capped(false)}, 20 * ms},
		{"one works, another lends", []*account{capped(true), shares(false)}, 20 * ms},
		{"one that lends works", []*account{capped(true), shares(true), shares(false)}, 4 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := nextLook(test.accounts); got != test.want {
				t.Errorf("the next look is in %v, want %v", got, test.want)
			}
		})
	}
}

// TestNewLimitsAreReadAtOnce checks that the lender searches the containers as soon as limits have
// changed, and not at every check.
func TestNewLimitsAreReadAtOnce(t *testing.T) {
	c := newContainer(t, 300_000)
	l, _ := newLender(t, c)
	searches, dirs := 0, l.Dirs
	l.Dirs = func() []string { searches++; return dirs() }
	now := time.Hour
	work(l, &now, 10, c)
	if searches != 1 {
		t.Errorf("searched %d times while nothing changed", searches)
	}
	if err := limits.Update(c.dir, []limits.Device{{UUID: gpu, MemoryBytes: 1, ComputePPM: 500_000, MaximumPPM: 1_000_000}}); err != nil {
		t.Fatal(err)
	}
	work(l, &now, 2, c)
	if searches != 2 || l.gpus[gpu][0].guarantee != 500_000 {
		t.Errorf("searched %d times after the limits changed, and the guarantee is %d ppm", searches, l.gpus[gpu][0].guarantee)
	}
}
