// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// lendingTime is the time after a change until borrowers have exactly their expected share.
const lendingTime = 20 * time.Millisecond

// wantShares checks the processes' shares of the GPU's time, in percent.
func wantShares(t testing.TB, what string, shares []float64, want ...float64) {
	t.Helper()
	for i, share := range shares {
		t.Logf("%s: %.1f, want %.0f", what, share, want[i])
		if share > want[i]+over || share < want[i]-under {
			t.Errorf("%s: process %d had %.1f %% of the GPU's time, want %.0f", what, i, share, want[i])
		}
	}
}

// TestMaximum checks that a container has up to its maximum while other containers are idle. Soon
// after the start of a container that wants all of the GPU, the first container has its guarantee.
func TestMaximum(t *testing.T) {
	t.Parallel()
	for _, kernel := range []string{"200", "20000"} {
		t.Run(kernel, timed.Test(func(t testing.TB) {
			m := newMachine(t)
			m.start(m.command("run", "--group", "idle", "--cores", "80", "--policy", "share", "--", "sleep", "3600"))
			eventually.Holds(m, patience, "the idle group is there", func() bool { return m.groupExists("idle") })
			pid := m.spin("t", tenant{20, "async", kernel}, []string{"--cores-max", "50"})
			m.waitForGPUTime([]int{pid})
			time.Sleep(time.Second)
			wantShares(t, "beside an idle container", m.sharesOf([]int{pid}, 2*time.Second), 50)

			neighbour := m.spin("neighbour", tenant{80, "async", "200"}, []string{"--policy", "share"})
			m.waitForGPUTime([]int{neighbour})
			time.Sleep(lendingTime)
			wantShares(t, "beside a container that wants all of the GPU", m.sharesOf([]int{pid, neighbour}, 2*time.Second), 20, 80)

			if err := syscall.Kill(neighbour, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lendingTime)
			soon := m.sharesOf([]int{pid}, 300*time.Millisecond)
			if kernel == "200" { // a long kernel is too coarse for this check
				wantShares(t, "as soon as the second container has stopped", soon, 50)
			}
			wantShares(t, "after the second container has stopped", m.sharesOf([]int{pid}, 2*time.Second), 50)
		}))
	}
}

// TestMaximumLeavesTheRestToOthers checks that the other containers get the time that a container
// at its maximum may not have.
func TestMaximumLeavesTheRestToOthers(t *testing.T) {
	t.Parallel()
	timed.Run(t, testMaximumLeavesTheRestToOthers)
}

func testMaximumLeavesTheRestToOthers(t testing.TB) {
	m := newMachine(t)
	pids := []int{
		m.spin("a", tenant{30, "async", "200"}, []string{"--cores-max", "40"}),
		m.spin("b", tenant{20, "async", "200"}, []string{"--policy", "share"}),
	}
	m.waitForGPUTime(pids)
	time.Sleep(time.Second)
	wantShares(t, "a and b", m.sharesOf(pids, 2*time.Second), 40, 60)
}

// TestMoreThanThereIs runs containers whose limits add up to more than the GPU can deliver.
// Containers with equal limits get equal parts of the GPU's time. If limits are unequal, the
// smaller limits hold. The rest for the larger limits depends on how often the GPU switches between
// containers, which is at most after every slice.
func TestMoreThanThereIs(t *testing.T) {
	t.Parallel()
	const h200 = "slice = 2ms\nswitch = 200us"
	for _, c := range []struct {
		name, card string
		limits     [2]int
		want       []float64
		most       float64 // bound on the larger share, which may exceed want
	}{
		{"equal", "", [2]int{60, 60}, []float64{50, 50}, 50},
		{"equal, on an H200", h200, [2]int{60, 60}, []float64{45, 45}, 45},
		{"unequal", "", [2]int{40, 80}, []float64{40, 60}, 60},
		{"unequal, on an H200", h200, [2]int{30, 70}, []float64{30, 60}, 70},
		{"more unequal, on an H200", h200, [2]int{40, 80}, []float64{40, 50}, 60},
	} {
		t.Run(c.name, timed.Test(func(t testing.TB) {
			m := newMachineWith(t, c.card)
			shares := m.shares("cap", []tenant{{c.limits[0], "async", "200"}, {c.limits[1], "async", "200"}})
			if shares[1] > c.want[1] && shares[1] <= c.most {
				c.want[1] = shares[1]
			}
			wantShares(t, c.name, shares, c.want...)
			if c.limits[0] == c.limits[1] && math.Abs(shares[0]-shares[1]) > over {
				t.Errorf("equal limits had %.1f %% and %.1f %%", shares[0], shares[1])
			}
		}))
	}
}
