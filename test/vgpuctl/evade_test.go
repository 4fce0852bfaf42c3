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
// any number give a container more than its limit, alone or beside another.
func TestEvade(t *testing.T) {
	environments := map[string][]string{
		"":         nil,
		"1 queue":  {"CUDA_DEVICE_MAX_CONNECTIONS=1"},
		"blocking": {"CUDA_LAUNCH_BLOCKING=1"},
	}
	for _, way := range newMachine(t).names("evade") {
		for environment, variables := range environments {
			for _, company := range []string{"alone", "beside another"} {
				t.Run(way+" "+environment+" "+company, timed.Test(func(t testing.TB) {
					evade(t, way, variables, company != "alone")
				}))
			}
		}
	}
}

// evade runs the workload of that name in one of its ways, limited to 30 %, and expects that it
// has no more than that, and a fifth of it: the times of several contexts are not united.
func evade(t testing.TB, way string, variables []string, company bool) {
	const limit = 30
	m := newMachineOf(t, filepath.Join(profileDir, "r580-h200.conf"), cards(t)["h200"])
	neighbour := 0
	if company {
		neighbour = m.spin("neighbour", tenant{50, "async", "200"}, nil)
		m.waitForGPUTime([]int{neighbour})
	}
	m.env = append(m.env, variables...)
	m.start(m.command("run", "--group", "t", "--memory", "14Gi", "--cores", strconv.Itoa(limit), "--",
		m.workload("evade"), "--way", way, "--duration", "60"))
	o := m.oracle()
	m.eventually("it uses the GPU", func() bool { return m.timeBut(o, neighbour) > 0 })
	time.Sleep(time.Second)
	from, before := time.Now(), m.timeBut(o, neighbour)
	time.Sleep(3 * time.Second)
	share := 100 * float64(m.timeBut(o, neighbour)-before) / float64(time.Since(from).Nanoseconds())
	t.Logf("limit %d: %.1f", limit, share)
	if share > limit+mostOver || share < limit/5 {
		t.Errorf("%.1f %% of the GPU's time, the limit is %d", share, limit)
	}
}

// timeBut is what all processes that live, but one, had of all GPUs' time.
func (m *machine) timeBut(o *oracle.Oracle, pid int) (sum uint64) {
	m.Helper()
	for of, ns := range m.gpuTime(o) {
		if of != pid {
			sum += ns
		}
	}
	return sum
}
