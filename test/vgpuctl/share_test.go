// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// These constants bound the deviation of a share, in points. A late lender on a busy machine lends
// less for a time. Meanwhile, other containers get the time that one container cannot take.
const (
	lentUnder = 15
	lentOver  = 12
)

// TestShareLends checks the policy share. A container alone has all of the GPU's time, and
// containers that all want the GPU have their guarantees.
func TestShareLends(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		tenants []tenant
		want    []float64
	}{
		{"alone", []tenant{{30, "async", "200"}}, []float64{100}},
		{"alone, long", []tenant{{30, "async", "20000"}}, []float64{100}},
		{"alike", []tenant{{30, "async", "200"}, {70, "async", "200"}}, []float64{30, 70}},
		{"unlike", []tenant{{30, "async", "20000"}, {70, "async", "200"}}, []float64{30, 70}},
		{"free time is divided by guarantees", []tenant{{20, "async", "200"}, {30, "async", "200"}}, []float64{40, 60}},
	} {
		t.Run(c.name, timed.Test(func(t testing.TB) {
			m := newMachine(t)
			for i, share := range m.shares("share", c.tenants) {
				t.Logf("guarantee %d: %.1f", c.tenants[i].limit, share)
				if share > c.want[i]+lentOver || share < c.want[i]-lentUnder {
					t.Errorf("%+v had %.1f %% of the GPU's time, want %.0f", c.tenants[i], share, c.want[i])
				}
			}
		}))
	}
}

// TestShareKeepsCaps checks that a container with a cap neither lends nor borrows.
func TestShareKeepsCaps(t *testing.T) {
	t.Parallel()
	timed.Run(t, testShareKeepsCaps)
}

func testShareKeepsCaps(t testing.TB) {
	m := newMachine(t)
	m.start(m.command("run", "--group", "idle", "--cores", "40", "--policy", "cap", "--", "sleep", "3600"))
	eventually.Holds(m, patience, "the group is there", func() bool { return m.groupExists("idle") })
	if share := m.shares("share", []tenant{{30, "async", "200"}})[0]; share > 60+over || share < 60-lentUnder {
		t.Errorf("beside an idle cap of 40 it had %.1f %%, want 60", share)
	}
}

func (m *machine) groupExists(name string) bool {
	_, err := os.Stat(filepath.Join(m.runs, "nri-vgpu", name, "limits"))
	return err == nil
}

// TestGuaranteeReturns checks that a container that lent its time has its guarantee again once the
// container becomes busy. 60 ms of GPU time take 86 ms at 70 %, and 120 ms at an even division of
// the GPU.
func TestGuaranteeReturns(t *testing.T) {
	t.Parallel()
	timed.Run(t, testGuaranteeReturns)
}

func testGuaranteeReturns(t testing.TB) {
	m := newMachine(t)
	m.compete("share", []tenant{{30, "async", "200"}})
	out := m.finish(0, m.command("run", "--cores", "70", "--policy", "share", "--", m.workload("latency"),
		"--kernel-us", "60000", "--period-ms", "200", "--duration", "4"))
	var median float64
	for field := range bytes.SplitSeq([]byte(out), []byte(",")) {
		_, _ = fmt.Sscanf(string(field), `"p50_ms":%f`, &median)
	}
	if median < 80 || median > 106 {
		t.Errorf("the work took %.1f ms, want 86 and at most 20 more: %s", median, out)
	}
}

// watchers returns the processes that watch groups, one of which lends.
func (m *machine) watchers() []int {
	m.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		m.Fatal(err)
	}
	var pids []int
	for _, path := range commands {
		line, _ := os.ReadFile(path) // the process may have ended
		args := bytes.Split(line, []byte{0})
		if len(args) < 4 || string(args[1]) != "watch-group" || string(args[2]) != "--detached" ||
			string(args[3]) != filepath.Join(m.runs, "nri-vgpu") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			m.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// killWatchers kills all processes that watch groups, including the lender.
func (m *machine) killWatchers() {
	m.Helper()
	for _, pid := range m.watchers() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			m.Fatal(err)
		}
	}
}

// TestLeasesEndWithTheirLender checks that leases end milliseconds after their lender.
func TestLeasesEndWithTheirLender(t *testing.T) {
	t.Parallel()
	timed.Run(t, testLeasesEndWithTheirLender)
}

func testLeasesEndWithTheirLender(t testing.TB) {
	m := newMachine(t)
	pids := m.compete("share", []tenant{{30, "async", "200"}})
	if share := m.sharesOf(pids, time.Second)[0]; share < 60 {
		t.Errorf("alone it had %.1f %%", share)
	}
	m.killWatchers()
	time.Sleep(50 * time.Millisecond)
	if share := m.sharesOf(pids, time.Second)[0]; share > 30+over {
		t.Errorf("without a lender it had %.1f %%, want its own 30", share)
	}
}

// TestLimitsHoldWhileTheLenderDies kills and restarts the lender every two seconds. Containers that
// want all of the GPU get their expected time in each period.
func TestLimitsHoldWhileTheLenderDies(t *testing.T) {
	t.Parallel()
	for policy, tenants := range map[string][]tenant{
		"cap":   {{30, "async", "200"}, {60, "async", "20000"}},
		"share": {{30, "async", "200"}, {70, "async", "20000"}},
	} {
		t.Run(policy, timed.Test(func(t testing.TB) {
			m := newMachine(t)
			pids := m.compete(policy, tenants)
			for range 3 {
				m.killWatchers()
				for i := range tenants {
					m.start(m.command("watch-group", "--detached", filepath.Join(m.runs, "nri-vgpu"), "t"+strconv.Itoa(i)))
				}
				eventually.Holds(m, patience, "both are watched again", func() bool { return len(m.watchers()) == len(tenants) })
				shares := m.sharesOf(pids, 2*time.Second)
				t.Logf("%.1f", shares)
				for i, share := range shares {
					if share > float64(tenants[i].limit)+over || share < float64(tenants[i].limit)-under {
						t.Errorf("%+v had %.1f %% of the GPU's time", tenants[i], share)
					}
				}
			}
			if live := m.gpuTime(m.oracle()); len(live) != len(pids) {
				t.Errorf("%d of %d programs are left", len(live), len(pids))
			}
		}))
	}
}
