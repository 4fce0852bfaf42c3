// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/selfcheck"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// groups are the machine's groups t0, t1, …, which replace an agent's containers.
type groups struct {
	*machine
	pids []int
	uuid string
}

func (g groups) Holders() map[string]placement.Allocation {
	all := map[string]placement.Allocation{}
	for i := range g.pids {
		name := "t" + strconv.Itoa(i)
		all[name] = placement.Allocation{PodUID: name, Namespace: "ns", Pod: name, Container: "main"}
	}
	return all
}

func (g groups) dir(podUID, _ string) (string, error) {
	return filepath.Join(g.runs, "nri-vgpu", podUID), nil
}

func (g groups) look(pid int) (registry.Process, error) {
	p, err := registry.HostProc.Look(pid)
	for i, own := range g.pids {
		if pid == own {
			p.Container = "t" + strconv.Itoa(i)
		}
	}
	return p, err
}

func (g groups) place(i int) selfcheck.Place {
	return selfcheck.Place{PodUID: "t" + strconv.Itoa(i), Container: "main", UUID: g.uuid}
}

// distrust returns the report of a group's interposer about its measurements.
func (g groups) distrust(i int) limits.Distrust {
	g.Helper()
	dir, _ := g.dir("t"+strconv.Itoa(i), "")
	usage, err := limits.ReadUsage(filepath.Join(dir, limits.UsageFile))
	if err != nil {
		g.Fatal(err)
	}
	return usage.Devices[0].Distrust
}

// counted are the values of a group's counters, in seconds.
type counted struct{ observed, metered float64 }

// TestBrokenMeterIsFound checks that the agent's check finds the container whose usage page records
// half of its charges, and not the other container. The test runs on the real driver library over
// the simulator. The oracle measures the GPU time of both containers.
func TestBrokenMeterIsFound(t *testing.T) {
	inOwnProcess(t, func(t *testing.T) { brokenMeterIsFound(t, "exact", 0.05) })
}

// TestBrokenMeterIsFoundBySamples is TestBrokenMeterIsFound with a driver that names one process
// six times a second. At 70 % of the time, the standard error of 72 samples is 5.4 points.
func TestBrokenMeterIsFoundBySamples(t *testing.T) {
	inOwnProcess(t, func(t *testing.T) { brokenMeterIsFound(t, "sampled", 0.25) })
}

// inOwnProcess runs a test in a process without other tests. A process can use the driver's library
// only for one machine.
func inOwnProcess(t *testing.T, test func(*testing.T)) {
	t.Helper()
	const alone = "NRI_VGPU_TEST_ALONE" // a variable of the process
	if os.Getenv(alone) != "" {
		test(t)
		return
	}
	t.Parallel()
	again := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), alone+"=1")
	output, err := again.CombinedOutput()
	t.Logf("%s", output)
	if err != nil {
		t.Fatal(err)
	}
}

func brokenMeterIsFound(t *testing.T, utilisation string, off float64) {
	m := newMachineWith(t, "utilisation = "+utilisation)
	t.Setenv("GPUSIM_STATE", filepath.Join(m.state, "state"))
	tenants := []tenant{{20, "async", "200"}, {70, "async", "2000"}}
	g := groups{machine: m, pids: m.compete("cap", tenants)}
	inventory := gpu.NewInventory(nvml.New(nvml.Options{Library: filepath.Join(m.build, "gpusim/libnvidia-ml.so.1")}), time.Second)
	gpus, err := inventory.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.uuid = gpus[0].UUID
	dir, _ := g.dir("t1", "")
	m.start(exec.Command(m.workload("pester"), "--way", "forge-time", "--dir", dir, "--duration", "60"))
	checker := selfcheck.New(selfcheck.Options{
		GPUs: inventory, Containers: g, Dir: g.dir, Look: g.look, Window: selfcheck.Window,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	go checker.Run(t.Context())
	time.Sleep(3 * time.Second)
	before := g.read(checker)
	from := g.gpuTime(g.oracle())
	began := time.Now()
	time.Sleep(12 * time.Second)
	after, to, passed := g.read(checker), g.gpuTime(g.oracle()), time.Since(began)

	for i, had := range after {
		v, ok := checker.Verdict(g.place(i))
		truth := float64(to[g.pids[i]]-from[g.pids[i]]) / float64(passed.Nanoseconds())
		saw := (had.observed - before[i].observed) / passed.Seconds()
		said := (had.metered - before[i].metered) / passed.Seconds()
		t.Logf("t%d: had %.3f, observed %.3f, metered %.3f; %+v", i, truth, saw, said, v)
		if !ok || math.Abs(v.Observed-truth) > off {
			t.Errorf("t%d had %.3f of the time, and %.3f was observed", i, truth, v.Observed)
		}
		if math.Abs(saw-truth) > off+0.05 || math.Abs(said-v.Metered) > 0.1 {
			t.Errorf("t%d had %.3f of the time; its counters have %.3f observed and %.3f metered", i, truth, saw, said)
		}
		if i == 0 && (v.Disagrees() || math.Abs(v.Metered-truth) > 0.05) {
			t.Errorf("the container with a sound meter: %+v", v)
		}
		if i == 1 && (!v.Disagrees() || v.Disagreement < 0 || math.Abs(v.Metered-truth/2) > 0.05) {
			t.Errorf("the container with a broken meter: %+v", v)
		}
	}
}

// read reads each group's counters.
func (g groups) read(checker *selfcheck.Checker) []counted {
	g.Helper()
	metrics := prometheus.NewPedanticRegistry()
	metrics.MustRegister(checker)
	families, err := metrics.Gather()
	if err != nil {
		g.Fatal(err)
	}
	all := make([]counted, len(g.pids))
	for _, family := range families {
		for _, metric := range family.Metric {
			i, err := strconv.Atoi(strings.TrimPrefix(pod(metric), "t"))
			if err != nil {
				g.Fatal(err)
			}
			switch family.GetName() {
			case "nri_vgpu_container_observed_gpu_seconds_total":
				all[i].observed = metric.Counter.GetValue()
			case "nri_vgpu_container_metered_gpu_seconds_total":
				all[i].metered = metric.Counter.GetValue()
			}
		}
	}
	return all
}

func pod(metric *dto.Metric) string {
	for _, l := range metric.Label {
		if l.GetName() == "pod" {
			return l.GetValue()
		}
	}
	return ""
}

// TestInterposerReportsItsMeasurements checks that containers with long kernels beside each other
// measure the card's clock and slices. The interposer counts distrusted measurements by cause:
// probes are queued behind the work, or other containers hide their use.
func TestInterposerReportsItsMeasurements(t *testing.T) {
	t.Parallel()
	pair := []tenant{{30, "async", "20000"}, {60, "async", "20000"}}
	for _, c := range []struct {
		name, card string
		hide       bool // the usage page of the second group records no charges
		check      func(limits.Distrust) bool
	}{
		{"a card", "clock_drift = 80ppm\nslice = 2ms\nswitch = 200us", false, func(d limits.Distrust) bool {
			return d.Aliased == 0 && d.Uncharged == 0 && math.Abs(d.DriftPPM-80) < 5 &&
				d.Slice > 1700*time.Microsecond && d.Slice < 2300*time.Microsecond
		}},
		{"a slow clock", "clock_drift = -50ppm", false, func(d limits.Distrust) bool { return math.Abs(d.DriftPPM+50) < 5 }},
		{"one queue", "connections = 1", false, func(d limits.Distrust) bool { return d.Aliased > 0 }},
		{"other containers hide their use", "", true, func(d limits.Distrust) bool { return d.Uncharged > 0 && d.Aliased == 0 }},
	} {
		t.Run(c.name, timed.Test(func(t testing.TB) {
			g := groups{machine: newMachineWith(t, c.card)}
			g.pids = g.compete("cap", pair)
			if c.hide {
				dir, _ := g.dir("t1", "")
				g.start(exec.Command(g.workload("pester"), "--way", "forge-spent", "--dir", dir, "--duration", "60"))
			}
			time.Sleep(4 * time.Second)
			if d := g.distrust(0); !c.check(d) {
				t.Errorf("the interposer reports %+v", d)
			} else {
				t.Logf("%+v", d)
			}
		}))
	}
}
