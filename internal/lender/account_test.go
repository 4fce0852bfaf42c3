// SPDX-License-Identifier: Apache-2.0

package lender

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// player simulates one container on a GPU. The player uses the allowed part of the time that it
// wants, and claims the used time.
type player struct {
	account
	wants uint32 // parts per million of the GPU's time
	claim limits.Allowance
	had   time.Duration
}

// play lets the players use the GPU for a duration, and returns each player's percentage of the
// time.
func play(players []*player, now *time.Duration, during time.Duration) []int {
	before := make([]time.Duration, len(players))
	for i, p := range players {
		before[i] = p.had
	}
	for end := *now + during; *now < end; *now += busyTick {
		accounts := make([]*account, len(players))
		for i, p := range players {
			p.use(*now)
			p.look(p.claim, *now, busyTick)
			accounts[i] = &p.account
		}
		lend(accounts)
	}
	shares := make([]int, len(players))
	for i, p := range players {
		shares[i] = int(math.Round(100 * float64(p.had-before[i]) / float64(during)))
	}
	return shares
}

func (p *player) use(now time.Duration) {
	const launch = 500 * time.Microsecond
	for at := now - busyTick + launch; p.wants > 0 && at <= now; at += launch {
		p.launch(at, launch)
	}
}

func (p *player) launch(now, passed time.Duration) {
	// Like the interposer's bucket, a player saves up at most 8 ms of its guarantee and 2 ms of
	// lent time.
	balance := time.Duration(p.claim.Balance)
	balance = max(balance, min(balance+part(passed, p.guarantee), 8*time.Millisecond))
	balance = max(balance, min(balance+part(passed, p.rate()-p.guarantee), 2*time.Millisecond))
	had := min(part(passed, p.wants), max(balance, 0))
	p.had += had
	p.claim.Spent += uint64(had)
	p.claim.Filled = now
	p.claim.Balance = int64(balance - had)
}

func between(percent, most, wants uint32) *player {
	return &player{account: account{guarantee: percent * 10000, maximum: most * 10000}, wants: wants * 10000}
}

func sharer(percent, wants uint32) *player { return between(percent, 100, wants) }

func capped(percent, wants uint32) *player { return between(percent, percent, wants) }

func TestLend(t *testing.T) {
	for _, test := range []struct {
		name    string
		players []*player
		want    []int
	}{
		{"alone", []*player{sharer(30, 100)}, []int{100}},
		{"alone, needing less", []*player{sharer(30, 60)}, []int{60}},
		{"both saturate", []*player{sharer(30, 100), sharer(70, 100)}, []int{30, 70}},
		{"unallocated time is divided by guarantees", []*player{sharer(20, 100), sharer(60, 100)}, []int{25, 75}},
		{"an idle one lends", []*player{sharer(30, 100), sharer(70, 0)}, []int{100, 0}},
		{"one that works keeps its guarantee", []*player{sharer(30, 100), sharer(70, 10)}, []int{30, 10}},
		{"a container with enough time gets no lease", []*player{sharer(20, 100), sharer(50, 30), sharer(10, 100)}, []int{33, 30, 17}},
		{"a cap keeps its time", []*player{sharer(30, 100), capped(50, 0)}, []int{50, 0}},
		{"a cap is a cap", []*player{sharer(30, 0), capped(50, 100)}, []int{0, 50}},
		{"alone, up to its maximum", []*player{between(20, 50, 100)}, []int{50}},
		{"up to its maximum beside an idle one", []*player{between(20, 50, 100), sharer(80, 0)}, []int{50, 0}},
		{"its guarantee beside one that wants all", []*player{between(20, 50, 100), sharer(80, 100)}, []int{20, 80}},
		{"time above a maximum goes to other containers", []*player{between(20, 30, 100), sharer(30, 100)}, []int{30, 70}},
		{"…in proportion", []*player{between(10, 12, 100), sharer(20, 100), sharer(40, 100)}, []int{12, 29, 59}},
		{"…until they have theirs", []*player{between(20, 30, 100), between(30, 40, 100)}, []int{30, 40}},
		{"maxima bind one after the other", []*player{between(10, 40, 100), between(30, 35, 100), between(20, 30, 100)}, []int{35, 35, 30}},
		{"idle time of a container with a maximum is lent", []*player{between(20, 50, 0), sharer(30, 100)}, []int{0, 100}},
		{"more was promised than there is", []*player{sharer(60, 100), sharer(70, 100)}, []int{60, 70}},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Hour
			play(test.players, &now, 200*time.Millisecond)
			if diff := cmp.Diff(test.want, play(test.players, &now, time.Second)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestGuaranteeReturns checks that a container that becomes busy has its guarantee at the next
// check. Soon after the container becomes idle, the lender lends its time again.
func TestGuaranteeReturns(t *testing.T) {
	borrower, owner := sharer(30, 100), sharer(70, 0)
	both := []*player{borrower, owner}
	now := time.Hour
	play(both, &now, 100*time.Millisecond)
	if borrower.rate() != limits.NoComputeLimit {
		t.Fatalf("it may use %d ppm of an idle GPU", borrower.rate())
	}
	owner.wants = limits.NoComputeLimit
	play(both, &now, busyTick)
	if borrower.rate() != 300_000 {
		t.Errorf("at the first look it may still use %d ppm", borrower.rate())
	}
	owner.wants = 0
	play(both, &now, hungryFor+linger+2*busyTick)
	if borrower.rate() != limits.NoComputeLimit {
		t.Errorf("it may use %d ppm again", borrower.rate())
	}
}

// TestLongKernelIsBusy checks that one long launch keeps its container busy while it runs.
func TestLongKernelIsBusy(t *testing.T) {
	a := account{guarantee: 500_000, maximum: limits.NoComputeLimit}
	now := time.Hour
	claim := limits.Allowance{Balance: int64(8 * time.Millisecond), Filled: now}
	a.look(claim, now, busyTick)
	claim.Spent += uint64(100 * time.Millisecond)
	began := now
	for now-began < 190*time.Millisecond {
		now += busyTick
		a.look(claim, now, busyTick)
		if !a.busy {
			t.Fatalf("idle after %s", now-began)
		}
	}
	for range 20 {
		now += busyTick
		a.look(claim, now, busyTick)
	}
	if a.busy {
		t.Errorf("busy after %s", now-began)
	}
}

// FuzzLies checks that no claim reduces another container's guarantee, and that hiding work gains
// nothing.
func FuzzLies(f *testing.F) {
	f.Add(uint64(0), int64(0), int64(0), uint64(1), int64(-1), int64(5))
	f.Add(uint64(math.MaxUint64), int64(math.MinInt64), int64(math.MaxInt64), uint64(1)<<63, int64(math.MaxInt64), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, spent uint64, balance, filled int64, spent2 uint64, balance2, filled2 int64) {
		liar, honest := sharer(30, 0), sharer(70, 100)
		now := time.Hour
		for i := range 200 {
			claim := limits.Allowance{Spent: spent, Balance: balance, Filled: time.Duration(filled)}
			if i%2 == 1 {
				claim = limits.Allowance{Spent: spent2 * uint64(i), Balance: balance2, Filled: time.Duration(filled2) + time.Duration(i)}
			}
			liar.look(claim, now, busyTick)
			honest.use(now)
			honest.look(honest.claim, now, busyTick)
			lend([]*account{&liar.account, &honest.account})
			now += busyTick
			if honest.busy && liar.rate() > 300_000 {
				t.Fatalf("the container may use %d ppm beside a busy container with 700000", liar.rate())
			}
			if honest.rate() < 700_000 {
				t.Fatalf("an honest container may use %d ppm, less than its guarantee", honest.rate())
			}
		}
	})
}

// TestLongWorkIsNotTakenForDone checks that a container with delayed long kernels gets its
// guarantee back at once. A borrower of the container's time takes half of the hardware and so
// delays the kernels. The container has saved up enough time never to wait.
func TestLongWorkIsNotTakenForDone(t *testing.T) {
	const kernel, wakes, tick = 20 * time.Millisecond, 3 * time.Millisecond, time.Millisecond
	const underWay = 12 * time.Millisecond // the borrower's use of a lease after its end
	owner, borrower := &account{guarantee: 700_000, maximum: limits.NoComputeLimit}, &account{guarantee: 300_000, maximum: limits.NoComputeLimit}
	claim := limits.Allowance{Balance: int64(kernel)}
	var had, left, free, lent time.Duration
	start := time.Hour
	for now := start; now < start+2*time.Second; now += tick {
		if borrower.lease > 0 {
			lent = now
		}
		switch {
		case left > 0:
			speed := owner.guarantee
			if now-lent <= underWay {
				speed = limits.NoComputeLimit / 2
			}
			step := min(part(tick, speed), left)
			had, left, free = had+step, left-step, now
		case now-free >= wakes && now-start > 50*time.Millisecond:
			left = kernel
			claim.Spent += uint64(kernel)
			claim.Filled = now
		}
		if now%busyTick == 0 {
			owner.look(claim, now, busyTick)
			borrower.look(limits.Allowance{Filled: now}, now, busyTick)
			lend([]*account{owner, borrower})
		}
	}
	if share := int(100 * had / (2 * time.Second)); share < 60 {
		t.Errorf("it had %d %% of the GPU's time, and could use 63", share)
	}
}
