// SPDX-License-Identifier: Apache-2.0

package cudatest

import (
	"math"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// spin is the output of the workload spin.
type spin struct {
	Pid         int     `json:"pid"`
	Launches    uint64  `json:"launches"`
	Kernels     float64 `json:"kernels"`
	WallSeconds float64 `json:"wall_s"`
	KernelTime  float64 `json:"kernel_time_s"`
	EventTime   float64 `json:"event_time_s"`
}

// TestSpinEveryPattern launches in every pattern. The oracle's GPU time is
// exactly the time of the kernels.
func TestSpinEveryPattern(t *testing.T) {
	machine := simtest.New(t, 1, memoryBytes)
	list, err := exec.Command(simtest.Workload(t, "spin"), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		pattern := strings.Fields(line)[0]
		t.Run(pattern, func(t *testing.T) {
			const kernelUs, count, nodes = 200, 500, 5
			var got spin
			runWorkload(t, machine, &got, "spin", "--pattern", pattern, "--kernel-us", "200",
				"--count", "500", "--graph-nodes", "5")
			want := float64(count)
			if pattern == "graph" {
				want *= nodes
			}
			if got.Launches != count || got.Kernels != want {
				t.Errorf("%d launches of %v kernels in all", got.Launches, got.Kernels)
			}
			seconds := want * kernelUs / 1e6
			gpuTime := float64(finished(t, machine, got.Pid).GPUTimeNs) / 1e9
			// Kernels on several streams run side by side.
			if pattern != "streams" && math.Abs(gpuTime-seconds) > 1e-6 {
				t.Errorf("GPU time %v s, want %v s", gpuTime, seconds)
			}
			if got.EventTime+1e-3 < gpuTime || got.EventTime > got.WallSeconds+1e-3 {
				t.Errorf("events: %v s, wall: %v s, GPU: %v s", got.EventTime, got.WallSeconds, gpuTime)
			}
		})
	}
}

// TestSpinTogether saturates a GPU from two processes. Each process gets half of the GPU's time.
func TestSpinTogether(t *testing.T) { timed.Run(t, testSpinTogether) }

func testSpinTogether(t testing.TB) {
	machine := simtest.New(t, 1, memoryBytes)
	var spins [2]spin
	kernels := [2]string{"100", "5000"} // µs
	var wait sync.WaitGroup
	for i := range spins {
		wait.Add(1)
		go func() {
			defer wait.Done()
			runWorkload(t, machine, &spins[i], "spin", "--duration", "2", "--warmup", "0.5", "--kernel-us", kernels[i])
		}()
	}
	wait.Wait()
	for _, got := range spins {
		if share := got.KernelTime / got.WallSeconds; share < 0.45 || share > 0.55 {
			t.Errorf("share %.3f of the GPU: %+v", share, got)
		}
	}
}

// latency is the output of the workload latency.
type latency struct {
	Samples uint64  `json:"samples"`
	P50     float64 `json:"p50_ms"`
}

// TestLatency measures a kernel of 1 ms. Without other processes, the kernel takes little more than
// its own time. Beside a process that saturates the GPU, the kernel takes one or two slices more.
func TestLatency(t *testing.T) { timed.Run(t, testLatency) }

func testLatency(t testing.TB) {
	machine := simtest.New(t, 1, memoryBytes)
	var alone, beside latency
	runWorkload(t, machine, &alone, "latency", "--duration", "1")
	if alone.Samples != 50 || alone.P50 < 1 || alone.P50 > 2 {
		t.Errorf("alone: %+v", alone)
	}
	neighbour := machine.Command(t, simtest.Workload(t, "spin"), "--duration", "60", "--kernel-us", "20000")
	if err := neighbour.Start(); err != nil {
		t.Fatal(err)
	}
	runWorkload(t, machine, &beside, "latency", "--duration", "1")
	if beside.P50 < 1.5 || beside.P50 > 4 {
		t.Errorf("beside a saturating process: %+v", beside)
	}
}
