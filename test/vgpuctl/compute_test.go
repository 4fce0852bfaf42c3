// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"bufio"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// These constants bound the deviation of a share, in points. A busy machine can keep a program from
// using its share, but never increases the share.
const (
	over  = 4
	under = 12
)

// tenant keeps a GPU busy under a compute limit.
type tenant struct {
	limit   int // percent
	pattern string
	kernel  string // µs
}

// gpuTime returns the time that each process had on all GPUs.
func (m *machine) gpuTime(o *oracle.Oracle) map[int]uint64 {
	m.Helper()
	live, err := o.Processes()
	if err != nil {
		m.Fatal(err)
	}
	times := make(map[int]uint64)
	for _, p := range live {
		for _, g := range p.GPUs {
			times[p.Pid] += g.GPUTimeNs
		}
	}
	return times
}

// shares runs tenants beside each other, with a policy, and returns their shares of two seconds, in
// percent.
func (m *machine) shares(policy string, tenants []tenant, arguments ...string) []float64 {
	m.Helper()
	pids := m.compete(policy, tenants, arguments...)
	time.Sleep(time.Second)
	return m.sharesOf(pids, 2*time.Second)
}

// compete starts tenants in groups t0, t1, … and waits until all use the GPU.
func (m *machine) compete(policy string, tenants []tenant, arguments ...string) []int {
	m.Helper()
	pids := make([]int, len(tenants))
	for i, t := range tenants {
		pids[i] = m.spin("t"+strconv.Itoa(i), t, []string{"--policy", policy}, arguments...)
	}
	m.waitForGPUTime(pids)
	return pids
}

// spin starts a tenant in a group, with options of the run and arguments of its program.
func (m *machine) spin(group string, t tenant, options []string, arguments ...string) int {
	m.Helper()
	run := append([]string{"run", "--group", group, "--cores", strconv.Itoa(t.limit)}, options...)
	run = append(run, "--", m.workload("spin"), "--pattern", t.pattern, "--kernel-us", t.kernel, "--streams", "8", "--duration", "60")
	return m.start(m.command(append(run, arguments...)...)).Process.Pid
}

// waitForGPUTime waits until all processes use the GPU.
func (m *machine) waitForGPUTime(pids []int) {
	m.Helper()
	o := m.oracle()
	eventually.Holds(m, patience, "all use the GPU", func() bool {
		times := m.gpuTime(o)
		for _, pid := range pids {
			if times[pid] == 0 {
				return false
			}
		}
		return true
	})
}

// sharesOf returns the shares of processes, measured from the call on.
func (m *machine) sharesOf(pids []int, duration time.Duration) []float64 {
	m.Helper()
	o := m.oracle()
	from, before := time.Now(), m.gpuTime(o)
	time.Sleep(duration)
	after, passed := m.gpuTime(o), time.Since(from)
	shares := make([]float64, len(pids))
	for i, pid := range pids {
		shares[i] = 100 * float64(after[pid]-before[pid]) / float64(passed.Nanoseconds())
	}
	return shares
}

// wantShare checks a share of the GPU's time in percent. No pause of the machine causes a share above
// the limit.
func wantShare(t testing.TB, who any, share, least, most float64) {
	t.Helper()
	switch {
	case share > most:
		timed.Defectf(t, "%+v had %.1f %% of the GPU's time, at most %.1f are allowed", who, share, most)
	case share < least:
		t.Errorf("%+v had %.1f %% of the GPU's time, want at least %.1f", who, share, least)
	}
}

// wantLimits checks that tenants had their limits of a GPU's time.
func wantLimits(t testing.TB, tenants []tenant, shares []float64) {
	t.Helper()
	for i, share := range shares {
		limit := float64(tenants[i].limit)
		t.Logf("limit %.0f: %.1f", limit, share)
		wantShare(t, tenants[i], share, limit-under, limit+over)
	}
}

// TestComputeShares checks that a container gets its part of the GPU's time, with any kernels and
// launches, alone and beside other containers.
func TestComputeShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		tenants []tenant
	}{
		{"short", []tenant{{30, "async", "20"}}},
		{"usual", []tenant{{50, "async", "200"}}},
		{"waiting", []tenant{{30, "sync", "2000"}}},
		{"graph", []tenant{{30, "graph", "200"}}},
		{"streams", []tenant{{30, "streams", "200"}}},
		{"per-thread stream", []tenant{{30, "ptds", "200"}}},
		{"cooperative", []tenant{{30, "coop", "200"}}},
		{"CUDA 2", []tenant{{30, "legacy", "200"}}},
		{"extended", []tenant{{30, "ex", "20000"}}},
		{"alike", []tenant{{30, "async", "200"}, {60, "async", "200"}}},
		{"unlike", []tenant{{30, "async", "20000"}, {60, "async", "200"}}},
		{"asking", []tenant{{30, "poll", "20000"}, {60, "async", "200"}}},
		{"three", []tenant{{20, "async", "200"}, {30, "async", "2000"}, {40, "async", "20000"}}},
	} {
		t.Run(c.name, timed.Test(func(t testing.TB) {
			m := newMachine(t)
			wantLimits(t, c.tenants, m.shares("cap", c.tenants))
		}))
	}
}

// TestWorkThatIsNewEachTime checks that the limit also holds for work without any estimate. The
// work has no estimate because each kernel has another shape.
func TestWorkThatIsNewEachTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		tenants []tenant
	}{
		{"one stream", []tenant{{50, "async", "1000"}}},
		{"streams", []tenant{{30, "streams", "1000"}}},
		{"beside another", []tenant{{30, "async", "1000"}, {60, "async", "200"}}},
	} {
		t.Run(c.name, timed.Test(func(t testing.TB) {
			m := newMachine(t)
			wantLimits(t, c.tenants, m.shares("cap", c.tenants, "--shapes", "1000000"))
		}))
	}
}

// TestStreamsRunSideBySide checks that kernels of several streams also run at the same time under a
// limit. The interposer charges the shared GPU time once.
func TestStreamsRunSideBySide(t *testing.T) {
	t.Parallel()
	timed.Run(t, testStreamsRunSideBySide)
}

func testStreamsRunSideBySide(t testing.TB) {
	const streams, kernel, wanted = 8, 2 * time.Millisecond, 3 // of eight at a time
	m := newMachine(t)
	pid := m.compete("cap", []tenant{{10, "streams", "2000"}})[0]
	o := m.oracle()
	var took time.Duration
	var kernels uint64
	sum := func() (time.Duration, uint64) {
		live, err := o.Processes()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range live {
			if p.Pid == pid && len(p.GPUs) == 1 {
				return time.Duration(p.GPUs[0].GPUTimeNs), p.GPUs[0].Launches
			}
		}
		return 0, 0
	}
	eventually.Holds(m, patience, "the interposer knows the overlap", func() bool { took, kernels = sum(); return took > 100*time.Millisecond })
	eventually.Holds(m, patience, "more is done", func() bool { now, _ := sum(); return now > took+100*time.Millisecond })
	after, more := sum()
	at := float64(time.Duration(more-kernels)*kernel) / float64(after-took)
	t.Logf("%.1f of %d kernels at a time", at, streams)
	if at < wanted {
		t.Errorf("%.1f of %d kernels ran at a time, want %d", at, streams, wanted)
	}
}

// mostWrong bounds the difference between the charge for work and its time, in percent.
const mostWrong = 3

// chargedEach returns the GPU time charged to each process of a group.
func (m *machine) chargedEach(group string) (each []time.Duration) {
	m.Helper()
	usage, err := limits.ReadUsage(filepath.Join(m.runs, "nri-vgpu", group, "usage"))
	if err != nil {
		m.Fatal(err)
	}
	for _, p := range usage.Processes {
		each = append(each, p.Devices[0].GPUTime)
	}
	return each
}

// charged returns the GPU time charged to a group.
func (m *machine) charged(group string) (sum time.Duration) {
	m.Helper()
	usage, err := limits.ReadUsage(filepath.Join(m.runs, "nri-vgpu", group, "usage"))
	if err != nil {
		m.Fatal(err)
	}
	for _, d := range usage.Devices {
		sum += d.GPUTime
	}
	return sum
}

// TestComputeCharges checks that the charge for work equals its time, even on a busy machine. The
// equality also holds for programs that wait for each launch, and for kernels of several streams,
// side by side or one after another. The equality holds for kernels without an estimate, which are
// never launched twice, and for kernels of varying length, whose estimate is wrong.
func TestComputeCharges(t *testing.T) {
	t.Parallel()
	const few, filling = "1", "4224" // blocks; a GPU has room for 4224
	alike, unlike := []string{}, []string{"--shapes", "1000000"}
	varying := func(other string, runs ...string) []string {
		return []string{"--other-us", other, "--run", runs[0], "--other-run", runs[len(runs)-1]}
	}
	for _, c := range []struct {
		pattern, kernel, blocks string
		more                    []string
	}{
		{"async", "200", few, alike}, {"graph", "20", few, alike},
		{"sync", "20", few, alike}, {"sync", "200", few, alike}, {"sync", "1000", few, alike}, {"sync", "5000", few, alike},
		{"async", "2", few, alike}, {"sync", "2", few, []string{"--burst", "10"}}, {"sync", "20", few, []string{"--burst", "5"}},
		{"streams", "20", few, alike}, {"streams", "20", filling, alike},
		{"async", "1000", few, unlike}, {"streams", "1000", few, unlike}, {"streams", "1000", filling, unlike},
		{"async", "20", few, varying("500", "1")}, {"async", "20", few, varying("500", "100")},
		{"async", "200", few, varying("2000", "500")},
		{"sync", "20", few, varying("500", "1")}, {"sync", "100", few, varying("300", "50")},
		{"sync", "1000", few, varying("1400", "1")}, {"streams", "20", few, varying("500", "1")},
		{"sync", "20", few, varying("5000", "1000", "1")},
		{"poll", "20", few, varying("5000", "100", "1")}, {"event", "20", few, varying("5000", "100", "1")},
		{"download", "20", few, varying("5000", "100", "1")},
	} {
		t.Run(strings.Join(append([]string{c.pattern, c.kernel, c.blocks}, c.more...), " "), timed.Test(func(t testing.TB) {
			known := 300 * time.Millisecond
			if slices.Contains(c.more, "--other-us") {
				known = 2 * time.Second // the interposer must detect that the length varies
			}
			spin := []string{"--pattern", c.pattern, "--kernel-us", c.kernel, "--blocks", c.blocks, "--streams", "8"}
			if wrong := newMachine(t).overcharge(known, append(spin, c.more...)...); math.Abs(wrong) > mostWrong {
				t.Errorf("charged %+.2f %%, want %d at most", wrong, mostWrong)
			}
		}))
	}
}

// TestLaunchesAreNotCharged checks that the interposer does not charge the time of launches as GPU
// time. Launches take as long as on an H200. A launch that waits for the kernel does not count as a
// launch.
func TestLaunchesAreNotCharged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kernel, env string
		most        float64
	}{
		{"20", "CUDA_LAUNCH_BLOCKING=0", mostWrong}, {"200", "CUDA_LAUNCH_BLOCKING=0", mostWrong},
		{"20", "CUDA_LAUNCH_BLOCKING=1", math.Inf(1)},
	} {
		t.Run(c.kernel+" "+c.env, timed.Test(func(t testing.TB) {
			m := newMachineOf(t, filepath.Join(profileDir, "r580-h200.conf"))
			m.env = append(m.env, c.env)
			wrong := m.overcharge(300*time.Millisecond, "--pattern", "sync", "--kernel-us", c.kernel)
			if wrong < -mostWrong || wrong > c.most {
				t.Errorf("charged %+.2f %%, want %d less to %.0f more at most", wrong, mostWrong, c.most)
			}
		}))
	}
}

// overcharge runs a program under a limit, and returns the percentage by which the charge exceeds
// the program's GPU time. The measurement covers one second of GPU time after the program has used
// `known`.
func (m *machine) overcharge(known time.Duration, spin ...string) float64 {
	m.Helper()
	run := []string{"run", "--group", "charged", "--cores", "50", "--", m.workload("spin"), "--duration", "60"}
	cmd := m.start(m.command(append(run, spin...)...))
	o := m.oracle()
	took := func() time.Duration { return time.Duration(m.gpuTime(o)[cmd.Process.Pid]) }
	eventually.Holds(m, patience, "the interposer knows the time of the work", func() bool { return took() > known })
	before, charged := took(), m.charged("charged")
	eventually.Holds(m, patience, "more work is done", func() bool { return took() > before+time.Second })
	charged, after := m.charged("charged")-charged, took()-before
	m.Logf("%s was charged for %s", charged, after)
	return 100 * (float64(charged)/float64(after) - 1)
}

// TestFirstKernelsAreChargedForThemselves runs two processes of a container that share the GPU with
// kernels without an estimate. One process has no processor for some time, so its probes do not
// always show which process had the GPU.
func TestFirstKernelsAreChargedForThemselves(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                  string
		pattern               string
		kernel, stopped, most time.Duration // each process is charged for both processes: four kernels
	}{
		// Together both kernels take less than the 100 ms for which a second kernel waits for the
		// first measurement.
		{"short", "async", 40 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond},
		// A program that waits for its kernel has no second kernel, for any length of the first
		// kernel.
		{"long", "sync", 200 * time.Millisecond, 30 * time.Millisecond, 450 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			timed.Run(t, func(t testing.TB) {
				testFirstKernelsAreChargedForThemselves(t, c.pattern, c.kernel, c.stopped, c.most)
			})
		})
	}
}

// ready starts a program with --wait-line, and waits until the program is ready. ready returns the
// process and a function that lets the program continue.
func (m *machine) ready(cmd *exec.Cmd) (pid int, begin func()) {
	m.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		m.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.Fatal(err)
	}
	m.start(cmd)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		m.Fatalf("%s printed %q (%v), want ready", cmd, line, err)
	}
	return cmd.Process.Pid, func() {
		m.Helper()
		if _, err := io.WriteString(in, "\n"); err != nil {
			m.Fatal(err)
		}
	}
}

func testFirstKernelsAreChargedForThemselves(t testing.TB, pattern string, kernel, stopped, most time.Duration) {
	m := newMachine(t)
	o := m.oracle()
	spin := []string{m.workload("spin"), "--pattern", pattern, "--kernel-us", strconv.FormatInt(kernel.Microseconds(), 10), "--duration", "60", "--wait-line"}
	var pids []int
	var begin []func()
	for _, limit := range [][]string{{"--cores", "10"}, nil} { // neither launches a second kernel
		args := append([]string{"run", "--group", "first"}, limit...)
		pid, ready := m.ready(m.command(append(append(args, "--"), spin...)...))
		pids, begin = append(pids, pid), append(begin, ready)
	}
	for _, launch := range begin { // not earlier: a start takes about as long as the short kernel
		launch()
	}
	eventually.Holds(m, patience, "both kernels run", func() bool {
		took := m.gpuTime(o)
		return min(took[pids[0]], took[pids[1]]) > uint64(kernel/10)
	})
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := syscall.Kill(pids[0], signal); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stopped)
	}
	var charged []time.Duration
	defer func() { t.Logf("charged %s for %s each", charged, kernel) }()
	// The interposer deducts the other process's time once the other process is charged.
	eventually.Holds(m, patience, "each process is charged only for its own kernel", func() bool {
		charged = m.chargedEach("first")
		return len(charged) == 2 && min(charged[0], charged[1]) > kernel-kernel/10 && charged[0]+charged[1] <= most
	})
}
