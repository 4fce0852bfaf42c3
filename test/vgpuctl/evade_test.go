package vgpuctl

import (
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// mostOver is by how many points a container may exceed its limit, whatever it tries.
const mostOver = 2

// TestEvade: neither variables of the environment nor streams, contexts, threads or processes of
// any number give a container more than its limit, alone or beside another.
func TestEvade(t *testing.T) {
	const limit = "30"
	card := cards(t)["h200"]
	plain := newMachineOf(t, profileDir+"/r580-h200.conf", card)
	environments := map[string][]string{
		"":         nil,
		"1 queue":  {"CUDA_DEVICE_MAX_CONNECTIONS=1"},
		"blocking": {"CUDA_LAUNCH_BLOCKING=1"},
	}
	for _, way := range plain.names("evade") {
		for environment, variables := range environments {
			t.Run(way+" "+environment, timed.Test(func(t testing.TB) {
				m := newMachineOf(t, profileDir+"/r580-h200.conf", card)
				m.env = append(m.env, variables...)
				m.start(m.command("run", "--group", "t", "--memory", "14Gi", "--cores", limit, "--",
					m.workload("evade"), "--way", way, "--duration", "60"))
				wantAtMost(t, m, 30)
			}))
		}
	}
}

// wantAtMost expects that all processes on the GPUs together have no more than so many percent
// of one's time, and most of that.
func wantAtMost(t testing.TB, m *machine, limit float64) {
	t.Helper()
	o := m.oracle()
	m.eventually("it uses the GPU", func() bool { return m.allTime(o) > 0 })
	time.Sleep(time.Second)
	from, before := time.Now(), m.allTime(o)
	time.Sleep(3 * time.Second)
	share := 100 * float64(m.allTime(o)-before) / float64(time.Since(from).Nanoseconds())
	t.Logf("limit %.0f: %.1f", limit, share)
	if share > limit+mostOver || share < limit/3 {
		t.Errorf("%.1f %% of the GPU's time, the limit is %.0f", share, limit)
	}
}

// allTime is what all processes that live had of all GPUs' time.
func (m *machine) allTime(o *oracle.Oracle) (sum uint64) {
	m.Helper()
	for _, ns := range m.gpuTime(o) {
		sum += ns
	}
	return sum
}
