package vgpuctl

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// mostOver is by how many points a container may exceed its limit, whatever it tries.
const mostOver = 2

// TestEvade: neither variables of the environment nor streams, contexts, threads or processes of
// any number give a container that has the GPU to itself more than its limit.
func TestEvade(t *testing.T) {
	environments := map[string][]string{
		"":         nil,
		"1 queue":  {"CUDA_DEVICE_MAX_CONNECTIONS=1"},
		"blocking": {"CUDA_LAUNCH_BLOCKING=1"},
	}
	for _, way := range newMachine(t).names("evade") {
		for environment, variables := range environments {
			t.Run(way+" "+environment, timed.Test(func(t testing.TB) { evade(t, way, variables) }))
		}
	}
}

// evade runs the workload of that name in one of its ways, limited to 30 %, and expects that it
// has no more than that, and a third of it.
func evade(t testing.TB, way string, variables []string) {
	const limit = 30
	m := newMachineOf(t, filepath.Join(profileDir, "r580-h200.conf"), cards(t)["h200"])
	m.env = append(m.env, variables...)
	m.start(m.command("run", "--group", "t", "--memory", "14Gi", "--cores", strconv.Itoa(limit), "--",
		m.workload("evade"), "--way", way, "--duration", "60"))
	o := m.oracle()
	m.eventually("it uses the GPU", func() bool { return m.allTime(o) > 0 })
	time.Sleep(time.Second)
	from, before := time.Now(), m.allTime(o)
	time.Sleep(3 * time.Second)
	share := 100 * float64(m.allTime(o)-before) / float64(time.Since(from).Nanoseconds())
	t.Logf("limit %d: %.1f", limit, share)
	if share > limit+mostOver || share < limit/3 {
		t.Errorf("%.1f %% of the GPU's time, the limit is %d", share, limit)
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
