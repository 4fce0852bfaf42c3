// SPDX-License-Identifier: Apache-2.0

package selfcheck

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	card = "GPU-00000000-0000-0000-0000-000000000001"

	// These constants are the offsets of fields on the usage page, as package limits declares them.
	highWaterOffset = 24
	slotsOffset     = 4096
	slotSize        = 2112
	attachedOffset  = 8
	gpuTimeOffset   = 64 + 4*8
)

// node has containers with one or more slots, on a simulated clock. The node's driver samples six
// times a second and names one process each time.
type node struct {
	*testing.T
	*Checker
	dirs    string
	clock   time.Time
	asked   int
	err     error
	samples []gpu.Sample
	strange *gpu.Sample // an invalid sample that the driver adds to its answer
	loads   []gpu.Load
	held    map[string]placement.Allocation
	owner   map[int]string // the container of each pid
	spent   map[string]time.Duration
	locks   map[string]*os.File
	log     bytes.Buffer
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		T: t, dirs: t.TempDir(), clock: time.Unix(1_700_000_000, 0), held: map[string]placement.Allocation{},
		owner: map[int]string{}, spent: map[string]time.Duration{}, locks: map[string]*os.File{},
	}
	n.Checker = New(Options{
		GPUs: n, Containers: n, Dir: n.dir, Look: n.look, Window: Window, Log: slog.New(slog.NewTextHandler(&n.log, nil)),
	})
	n.now = func() time.Time { return n.clock }
	return n
}

func (n *node) Samples(_ context.Context, since time.Time) (map[string]gpu.Samples, error) {
	n.asked++
	var list []gpu.Sample
	for _, s := range n.samples {
		if s.At.After(since) && !s.At.After(n.clock) {
			list = append(list, s)
		}
	}
	if n.strange != nil {
		list = append(list, *n.strange)
	}
	return map[string]gpu.Samples{card: {Processes: list, Loads: n.loads}}, n.err
}

func (n *node) Holders() map[string]placement.Allocation { return n.held }

func (n *node) dir(podUID, _ string) (string, error) { return filepath.Join(n.dirs, podUID), nil }

func (n *node) look(pid int) (registry.Process, error) {
	if name, lives := n.owner[pid]; lives {
		return registry.Process{PID: pid, Place: registry.Place{Container: name}}, nil
	}
	return registry.Process{}, registry.ErrGone
}

// contain adds a container.
func (n *node) contain(name string, device limits.Device) {
	n.Helper()
	device.UUID, device.MemoryBytes = card, 1<<30
	dir := filepath.Join(n.dirs, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		n.Fatal(err)
	}
	if err := limits.Create(dir, []limits.Device{device}); err != nil {
		n.Fatal(err)
	}
	n.held[name] = placement.Allocation{PodUID: name, Namespace: "ns", Pod: name, Container: "main"}
}

// run starts a container's process with this pid. The process takes slot 0, with the current time
// as the attach time.
func (n *node) run(name string, pid int) {
	n.Helper()
	n.owner[pid] = name
	page := filepath.Join(n.dirs, name, limits.UsageFile)
	f, err := os.OpenFile(page, os.O_RDWR, 0)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { f.Close() })
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: slotsOffset, Len: slotSize}
	if n.locks[name] != nil {
		n.locks[name].Close()
	}
	n.locks[name] = f
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		n.Fatal(err)
	}
	n.spent[name] = 0
	n.put(name, highWaterOffset, 1|1<<32) // the upper half is the next field, the count of GPUs
	n.put(name, slotsOffset, uint64(pid))
	n.put(name, slotsOffset+attachedOffset, uint64(n.clock.UnixNano()))
	n.put(name, slotsOffset+gpuTimeOffset, 0)
}

func (n *node) put(name string, offset int64, word uint64) {
	n.Helper()
	if _, err := n.locks[name].WriteAt(binary.LittleEndian.AppendUint64(nil, word), offset); err != nil {
		n.Fatal(err)
	}
}

// charge adds GPU time to the charge that a container's process reports.
func (n *node) charge(name string, ns time.Duration) {
	n.spent[name] += ns
	n.put(name, slotsOffset+gpuTimeOffset, uint64(n.spent[name]))
}

// second advances the clock by a second. Each container is charged its part, and six samples name
// the pids one after another.
func (n *node) second(charged map[string]float64, sampled [6]int) {
	n.Helper()
	for i, pid := range sampled {
		if pid != 0 {
			at := n.clock.Add(time.Duration(i+1) * sixth)
			n.samples = append(n.samples, gpu.Sample{PID: pid, At: at, Percent: 100})
		}
	}
	for name, part := range charged {
		n.charge(name, time.Duration(part*float64(time.Second)))
	}
	n.clock = n.clock.Add(time.Second)
	n.step(n.Context())
}

func (n *node) verdict(name string) Verdict {
	n.Helper()
	v, ok := n.Verdict(Place{name, "main", card})
	if !ok {
		n.Fatalf("nothing is known of %s", name)
	}
	return v
}

func near(a, b float64) bool { return math.Abs(a-b) < 0.01 }

func TestCheckerComparesSamplesWithPages(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"sound", "half"} {
		n.contain(name, limits.Device{ComputePPM: 500_000})
	}
	n.contain("unlimited", limits.Device{ComputePPM: limits.NoComputeLimit})
	n.contain("mps", limits.Device{ComputePPM: 500_000, MPS: true})
	n.run("sound", 1)
	n.run("half", 2)
	for range 120 { // each container uses half of the time, and "half" reports a quarter
		n.second(map[string]float64{"sound": 0.5, "half": 0.25}, [6]int{1, 2, 2, 1, 1, 2})
	}
	sound, half := n.verdict("sound"), n.verdict("half")
	if !near(sound.Observed, 0.5) || !near(sound.Metered, 0.5) || sound.Disagrees() {
		t.Errorf("the sound one: %+v", sound)
	}
	if !near(half.Observed, 0.5) || !near(half.Metered, 0.25) || !half.Disagrees() || half.Disagreement < 0 {
		t.Errorf("the container that reports half: %+v", half)
	}
	if half.Elapsed < 118*time.Second || half.Samples < 700 || half.Samples > 725 {
		t.Errorf("after two minutes, the record has %v in %d samples", half.Elapsed, half.Samples)
	}
	if len(n.checks) != 2 {
		t.Errorf("%d containers are checked, want those with a limit on time alone", len(n.checks))
	}
	if got := testutil.CollectAndCount(n.Checker); got != 12 {
		t.Errorf("%d series, want 6 for each of 2 containers", got)
	}
	if problems, err := testutil.CollectAndLint(n.Checker); err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", problems, err)
	}
	// A pod that was deleted by force may still run while its namesake runs.
	for place, check := range n.checks {
		check.pod = "namesake"
		n.checks[place] = check
	}
	if got := testutil.CollectAndCount(n.Checker); got != 6 {
		t.Errorf("%d series, want 6 for both containers of one name", got)
	}
	delete(n.held, "half")
	n.second(nil, [6]int{})
	if _, ok := n.Verdict(Place{"half", "main", card}); ok {
		t.Error("a container that has ended is known")
	}
}

// TestCheckerLeavesOutWhatIsNotWhole checks that the comparison skips a second in which processes
// start or end, or the driver does not answer. The comparison counts the time and all samples before
// a late query.
func TestCheckerLeavesOutWhatIsNotWhole(t *testing.T) {
	for _, c := range []struct {
		name    string
		disturb func(n *node, second int)
	}{
		{"nothing", func(*node, int) {}},
		{"processes come and go", func(n *node, second int) {
			if second%4 == 3 {
				n.run("c", 1)
				n.charge("c", 20*time.Millisecond) // no sample covers this charge yet
			}
		}},
		{"the driver fails", func(n *node, second int) {
			n.err = nil
			if second%4 == 3 {
				n.err = errors.New("GPU is lost")
			}
		}},
		{"the driver reports a value above 100", func(n *node, _ int) {
			n.strange = &gpu.Sample{PID: 1, At: n.clock, Percent: math.MaxUint32}
		}},
		{"the driver reports a sample of the future", func(n *node, second int) {
			n.strange = nil
			if second == 100 {
				n.strange = &gpu.Sample{PID: 1, At: n.clock.Add(time.Hour), Percent: 100}
			}
		}},
		{"the driver repeats an old sample", func(n *node, _ int) {
			n.strange = &gpu.Sample{PID: 1, At: n.clock.Add(-time.Minute), Percent: 100}
		}},
		{"the clock is set back", func(n *node, second int) {
			if second == 100 {
				n.clock = n.clock.Add(-time.Hour)
				n.samples = nil
			}
		}},
		{"two queries at the same time", func(n *node, second int) {
			if second%4 == 3 {
				n.charge("c", 200*time.Millisecond) // the period of this charge has no length
				n.step(n.Context())
			}
		}},
		{"the node stands still", func(n *node, second int) {
			if second%4 == 3 {
				pause := [2]time.Duration{600 * time.Millisecond, 2 * time.Second}[second/4%2]
				n.clock = n.clock.Add(pause)
				n.charge("c", pause) // the samples of this time are lost
			}
		}},
		{"the query is late", func(n *node, second int) {
			if second%4 == 3 {
				n.samples = append(n.samples, gpu.Sample{PID: 1, At: n.clock.Add(sixth), Percent: 100})
				n.charge("c", sixth)
				n.clock = n.clock.Add(2 * sixth)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.contain("c", limits.Device{ComputePPM: 500_000})
			n.run("c", 1)
			for i := range 240 {
				c.disturb(n, i)
				n.second(map[string]float64{"c": 0.5}, [6]int{1, 0, 1, 1, 0, 0})
			}
			v := n.verdict("c")
			if !near(v.Observed, 0.5) || !near(v.Metered, 0.5) || v.Disagrees() {
				t.Errorf("%+v", v)
			}
			if strings.Contains(c.name, "late") && v.Elapsed < 258*time.Second { // of 259 s
				t.Errorf("late queries do not count: %+v", v)
			}
			if n.log.Len() > 0 != strings.Contains(c.name, "fails") {
				t.Errorf("got the log %q", &n.log)
			}
		})
	}
}

// TestCheckerBoundsClaims checks that the charge on the usage page affects only the verdict on its
// own container, within bounds. The charge is a claim.
func TestCheckerBoundsClaims(t *testing.T) {
	for _, c := range []struct {
		name  string
		claim []uint64 // in turn
	}{
		{"more and more", []uint64{1 << 40, 1 << 50, 1 << 60, math.MaxUint64}},
		{"up and down", []uint64{0, math.MaxUint64, 1 << 62}},
		{"nothing", []uint64{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			for i, name := range []string{"liar", "sound"} {
				n.contain(name, limits.Device{ComputePPM: 500_000})
				n.run(name, i+1)
			}
			for i := range 100 {
				n.put("liar", slotsOffset+gpuTimeOffset, c.claim[i%len(c.claim)])
				n.second(map[string]float64{"sound": 0.5}, [6]int{1, 2, 2, 1, 1, 2})
			}
			if v := n.verdict("sound"); !near(v.Metered, 0.5) || v.Disagrees() {
				t.Errorf("the container beside it: %+v", v)
			}
			if v := n.verdict("liar"); v.Metered > 2.01 || v.Metered < -1.01 || math.Abs(v.Disagreement) > 2 || !v.Disagrees() {
				t.Errorf("the container with a false page: %+v", v)
			}
		})
	}
}

// TestSeriesHaveTheValues checks the series of a container that uses half of the time, and reports a
// quarter.
func TestSeriesHaveTheValues(t *testing.T) {
	n := newNode(t)
	n.contain("half", limits.Device{ComputePPM: 500_000})
	n.run("half", 1)
	n.second(nil, [6]int{})
	for range 240 {
		n.second(map[string]float64{"half": 0.25}, [6]int{1, 0, 1, 1, 0, 0})
	}
	series := prometheus.NewPedanticRegistry()
	series.MustRegister(n.Checker)
	families, err := series.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[strings.TrimPrefix(f.GetName(), "nri_vgpu_container_")] = f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
	}
	for name, want := range map[string]float64{"observed_gpu_seconds_total": 120, "metered_gpu_seconds_total": 60, "meter_ratio": 2} {
		if math.Abs(got[name]-want) > want/20 { // the first samples count as a second each
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if low, high := got["meter_low_ratio"], got["meter_high_ratio"]; low <= 1 || low >= 2 || high <= 2 || high >= 3 {
		t.Errorf("the ratio is between %v and %v", low, high)
	}
	if d := got["meter_disagreement_ratio"]; d <= 0.1 || d >= 0.25 {
		t.Errorf("observed and metered time differ by %v", d)
	}
}

// TestMeteredTimeIsNeverNegative checks the counter of a container whose process withdraws its charge.
func TestMeteredTimeIsNeverNegative(t *testing.T) {
	n := newNode(t)
	n.contain("c", limits.Device{ComputePPM: 500_000})
	n.run("c", 1)
	n.charge("c", 500*time.Millisecond)
	n.second(nil, [6]int{})
	n.second(map[string]float64{"c": -0.5}, [6]int{})
	const want = `
# HELP nri_vgpu_container_metered_gpu_seconds_total GPU time charged to the container during checks, as its usage page reports it.
# TYPE nri_vgpu_container_metered_gpu_seconds_total counter
nri_vgpu_container_metered_gpu_seconds_total{container="main",namespace="ns",pod="c",uuid="` + card + `"} 0
`
	if err := testutil.CollectAndCompare(n.Checker, strings.NewReader(want), "nri_vgpu_container_metered_gpu_seconds_total"); err != nil {
		t.Error(err)
	}
}

// TestCheckerForgets checks that nothing of earlier containers remains when no container has a limit on
// time, because processes may get the same pids later.
func TestCheckerForgets(t *testing.T) {
	n := newNode(t)
	n.contain("c", limits.Device{ComputePPM: 500_000})
	n.run("c", 1)
	for range 3 {
		n.loads = append(n.loads, gpu.Load{At: n.clock, Percent: 50})
		n.second(map[string]float64{"c": 0.5}, [6]int{1, 0, 1, 1, 0, 0})
	}
	delete(n.held, "c")
	n.second(nil, [6]int{})
	if len(n.cursors)+len(n.rhythms)+len(n.busies)+len(n.owners)+len(n.checks) != 0 {
		t.Errorf("it keeps %v, %v, %v, %v, %v", n.cursors, n.rhythms, n.busies, n.owners, n.checks)
	}
}

func TestCheckerLeavesTheDriverAlone(t *testing.T) {
	n := newNode(t)
	n.contain("unlimited", limits.Device{ComputePPM: limits.NoComputeLimit})
	for range 10 {
		n.second(nil, [6]int{})
	}
	if n.asked != 0 {
		t.Errorf("the driver was asked %d times, and no container has a limit on time", n.asked)
	}
}
