// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// spinning is the tolerance in points, because a peer that waits for the machine's processors makes
// the other GPU spin.
const spinning = 15

// TestExchangeGoesOnAtItsShare checks that kernels on two GPUs that spin for each other proceed at
// the smaller of the two limits. The kernels do not waste the GPU time that the limits allow beyond
// the smaller limit.
func TestExchangeGoesOnAtItsShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		limits [2]uint32 // percent
		args   []string
	}{
		{"equal", [2]uint32{40, 40}, []string{"--kernel-us", "200"}},
		{"unequal", [2]uint32{30, 60}, []string{"--kernel-us", "200"}},
		{"long", [2]uint32{40, 40}, []string{"--kernel-us", "20000"}},
		{"one thread", [2]uint32{30, 30}, []string{"--kernel-us", "200", "--one-thread"}},
		{"one thread, the larger limit first", [2]uint32{30, 60}, []string{"--kernel-us", "200", "--one-thread", "--swapped"}},
	} {
		t.Run(c.name, timed.Test(func(t testing.TB) {
			m := newMachine(t)
			m.start(m.command("run", "--group", "g", "--memory", "4Gi", "--cores", "50", "--gpu", "0", "--gpu", "1", "--", "sleep", "3600"))
			eventually.Holds(m, patience, "the group is there", func() bool { return m.groupExists("g") })
			m.setCores("g", c.limits)
			const duration = 2.0
			out := m.finish(0, m.command(append([]string{"run", "--group", "g", "--", m.workload("exchange"), "--duration", "2"}, c.args...)...))
			var said struct {
				Turns    float64 `json:"turns_per_s"`
				KernelUS float64 `json:"kernel_us"`
			}
			if err := json.Unmarshal([]byte(out), &said); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			useful := said.Turns * said.KernelUS / 1e6 * 100
			t.Logf("%.1f %% of the GPUs' time is of use", useful)
			if least := float64(min(c.limits[0], c.limits[1])); useful < least-under || useful > least+over {
				t.Errorf("%.1f %% of the GPUs' time is of use, want %.0f", useful, least)
			}
			for i, had := range m.finishedGPUTime("exchange") {
				if share := had / duration * 100; share > float64(min(c.limits[0], c.limits[1]))+spinning {
					t.Errorf("GPU %d was held for %.1f %% of the time", i, share)
				}
			}
		}))
	}
}

// setCores sets the limits of a group's two GPUs.
func (m *machine) setCores(group string, percent [2]uint32) {
	m.Helper()
	dir := filepath.Join(m.runs, "nri-vgpu", group)
	devices, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		m.Fatal(err)
	}
	for i := range devices {
		devices[i].ComputePPM = percent[i] * 10_000
	}
	if err := limits.Update(dir, devices); err != nil {
		m.Fatal(err)
	}
}

// finishedGPUTime returns the time in seconds that a finished program had, by GPU.
func (m *machine) finishedGPUTime(program string) []float64 {
	m.Helper()
	finished, err := m.oracle().Finished()
	if err != nil {
		m.Fatal(err)
	}
	var seconds []float64
	for _, p := range finished {
		if !strings.HasPrefix(p.Comm, program) {
			continue
		}
		for _, g := range p.GPUs {
			seconds = append(seconds, float64(g.GPUTimeNs)/1e9)
		}
	}
	if len(seconds) == 0 {
		m.Fatalf("%s has left no trace", program)
	}
	return seconds
}
