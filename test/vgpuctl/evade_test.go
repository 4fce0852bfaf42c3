// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// mostOver is the number of points by which a container may exceed its limit with any evasion.
const mostOver = 2

// TestEvade checks that a container cannot exceed its limit, alone or beside another container. The
// container sets variables of the environment, or uses many streams, contexts, threads or
// processes.
func TestEvade(t *testing.T) {
	t.Parallel()
	environments := map[string][]string{
		"":         {"CUDA_DEVICE_MAX_CONNECTIONS=8"}, // CUDA's default
		"1 queue":  {"CUDA_DEVICE_MAX_CONNECTIONS=1"},
		"blocking": {"CUDA_LAUNCH_BLOCKING=1"},
	}
	for _, way := range newMachine(t).names("evade") {
		for environment, variables := range environments {
			for _, company := range []string{"alone", "beside another"} {
				if (way == "once" || way == "few") && environment != "" && company != "alone" {
					continue // without probes, the first long kernel of a kind counts as others' slices
				}
				t.Run(way+" "+environment+" "+company, timed.Test(func(t testing.TB) {
					evade(t, way, variables, company != "alone")
				}))
			}
		}
	}
}

// evade runs the workload evade in one of its ways, limited to 30 %. evade checks that the workload
// has at most this share, and at least a fifth of the share. The interposer does not unite the
// times of several contexts.
func evade(t testing.TB, way string, variables []string, company bool) {
	const limit = 30
	m := newMachineOf(t, filepath.Join(profileDir, "r580-h200.conf"), cards(t)["h200"])
	neighbour := 0
	if company {
		neighbour = m.spin("neighbour", tenant{50, "async", "200"}, nil)
		m.waitForGPUTime([]int{neighbour})
	}
	m.env = append(m.env, variables...)
	args := []string{"run", "--group", "t", "--memory", "14Gi", "--cores", strconv.Itoa(limit), "--gpu", "0"}
	if strings.HasPrefix(way, "spread") {
		args = append(args, "--gpu", "1")
	}
	m.start(m.command(append(args, "--", m.workload("evade"), "--way", way, "--duration", "60")...))
	o := m.oracle()
	eventually.Holds(m, patience, "the workload uses the GPU", func() bool { return m.busyBut(o, neighbour) > 0 })
	time.Sleep(time.Second)
	from, before := time.Now(), m.busyBut(o, neighbour)
	time.Sleep(3 * time.Second)
	share := 100 * float64(m.busyBut(o, neighbour)-before) / float64(time.Since(from).Nanoseconds())
	t.Logf("%s, limit %d: %.1f", way, limit, share)
	wantShare(t, way, share, limit/5, limit+mostOver)
}

// busyBut returns the time in ns for which all processes except one, including ended processes,
// held the GPUs.
func (m *machine) busyBut(o *oracle.Oracle, pid int) uint64 {
	m.Helper()
	gpus, err := o.GPUs()
	if err != nil {
		m.Fatal(err)
	}
	var busy uint64
	for _, gpu := range gpus {
		busy += uint64(gpu.Busy.Nanoseconds())
	}
	return busy - m.gpuTime(o)[pid]
}
