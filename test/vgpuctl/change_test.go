// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// change sets the memory limit of the running group g.
func (m *machine) change(bytes uint64) {
	m.Helper()
	dir := filepath.Join(m.runs, "nri-vgpu/g")
	devices, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		m.Fatal(err)
	}
	for i := range devices {
		devices[i].MemoryBytes = bytes
	}
	if err := limits.Update(dir, devices); err != nil {
		m.Fatal(err)
	}
}

// TestLimitChangesUnderARunningProcess checks a process that repeatedly fills and frees its memory.
// The process follows changes of its limit in both directions while it runs.
func TestLimitChangesUnderARunningProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	o := m.oracle()
	// If the limit rises while fill requests its smallest piece, fill fills the difference with
	// pieces of this size. Single bytes would take minutes.
	m.start(m.command("run", "--group", "g", "--memory", "4Gi", "--", m.workload("fill"), "--rounds", "10000000", "--chunk", "32MiB", "--granularity", "1MiB"))
	const look = 50 * time.Millisecond
	most := func(during time.Duration) uint64 {
		var seen uint64
		for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(50 * time.Microsecond) {
			bytes, _ := m.held(o)
			seen = max(seen, bytes)
		}
		return seen
	}
	eventually.Holds(m, patience, "the process fills its memory", func() bool { return most(look) > 1<<30 })
	for _, next := range []struct{ limit, more uint64 }{{1 << 30, 1 << 29}, {3 << 30, 1 << 30}, {2 << 30, 1 << 30}, {6 << 30, 3 << 30}} {
		limit := next.limit
		m.change(limit)
		// The process may keep its memory until its next release.
		eventually.Holds(m, patience, "the process holds no more than its limit", func() bool { bytes, _ := m.held(o); return bytes <= limit })
		if seen := most(500 * time.Millisecond); seen > limit {
			t.Errorf("after its limit became %d bytes it took %d", limit, seen)
		}
		eventually.Holds(m, patience, "the process uses the memory of its new limit", func() bool { return most(look) > next.more })
	}
}

// TestLimitBelowUse checks that a limit below the use frees no memory. The interposer refuses
// further memory until the use is below the limit.
func TestLimitBelowUse(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	o := m.oracle()
	first := m.start(m.command("run", "--group", "g", "--memory", "4Gi", "--", m.workload("fill"), "--hold", "3600"))
	eventually.Holds(m, patience, "the group is there", func() bool { _, err := os.Stat(filepath.Join(m.runs, "nri-vgpu/g")); return err == nil })
	m.start(m.command("run", "--group", "g", "--", "sleep", "3600")) // keeps the group
	eventually.Holds(m, patience, "the first process is full", func() bool { bytes, _ := m.held(o); return bytes == 4<<30 })
	fill := func(status int) {
		m.Helper()
		m.finish(status, m.command("run", "--group", "g", "--", m.workload("fill")))
	}

	m.change(2 << 30)
	fill(1) // no room for its context
	if bytes, processes := m.held(o); bytes != 4<<30 || processes != 1 {
		t.Errorf("%d processes hold %d bytes, want the first with 4 GiB", processes, bytes)
	}
	m.change(5 << 30)
	fill(0)
	if peak := m.peak(o); peak != 1<<30 {
		t.Errorf("beside 4 of 5 GiB a process held %d bytes, want 1 GiB", peak)
	}
	m.change(2 << 30)
	_ = first.Process.Kill()
	eventually.Holds(m, patience, "the first process is gone", func() bool { _, processes := m.held(o); return processes == 0 })
	if fill(0); m.peak(o) != 4<<30 {
		t.Errorf("a process held %d bytes", m.peak(o))
	}
}
