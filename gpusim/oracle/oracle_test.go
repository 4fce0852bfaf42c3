// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
)

const gib = 1 << 30

// comm is a holder's command name, as the kernel truncates it.
const comm = "gpusim-holder"

func open(t *testing.T, machine *simtest.Machine) *Oracle {
	t.Helper()
	oracle, err := Open(machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := oracle.Close(); err != nil {
			t.Error(err)
		}
	})
	return oracle
}

func TestGPUs(t *testing.T) {
	oracle := open(t, simtest.New(t, 3, 16*gib))
	gpus, err := oracle.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	want := []GPU{{Index: 0}, {Index: 1, Minor: 1}, {Index: 2, Minor: 2}}
	for i := range want {
		want[i].Name = "NVIDIA Simulated H200"
		want[i].MemoryBytes = 16 * gib
		want[i].ContextBytes = gib / 2
	}
	if diff := cmp.Diff(want, gpus, cmpopts.IgnoreFields(GPU{}, "UUID", "PCIBusID")); diff != "" {
		t.Error(diff)
	}
	if gpus[0].UUID == gpus[1].UUID || len(gpus[0].UUID) != 40 {
		t.Errorf("UUIDs %q and %q", gpus[0].UUID, gpus[1].UUID)
	}
}

func TestProcesses(t *testing.T) {
	machine := simtest.New(t, 2, 4*gib)
	oracle := open(t, machine)
	one, two := simtest.StartHolder(t, machine), simtest.StartHolder(t, machine)
	for _, step := range []struct {
		by      *simtest.Holder
		gpu     int
		bytes   int64
		granted bool
	}{
		{one, 0, 3 * gib, true},
		{one, 0, -gib, true},
		{two, 0, 3 * gib, false},
		{two, 0, 2*gib + 1, false},
		{two, 0, 2 * gib, true},
		{two, 1, 7, true},
	} {
		if got := step.by.Hold(t, step.gpu, step.bytes); got != step.granted {
			t.Fatalf("%d bytes of GPU %d: granted %v, want %v", step.bytes, step.gpu, got, step.granted)
		}
	}
	got, err := oracle.Processes()
	if err != nil {
		t.Fatal(err)
	}
	want := []Process{
		{Pid: one.Pid, SelfPid: one.Pid, Comm: comm, GPUs: []Use{
			{Index: 0, Bytes: 2 * gib, PeakBytes: 3 * gib}}},
		{Pid: two.Pid, SelfPid: two.Pid, Comm: comm, GPUs: []Use{
			{Index: 0, Bytes: 2 * gib, PeakBytes: 2 * gib}, {Index: 1, Bytes: 7, PeakBytes: 7}}},
	}
	if want[0].Pid != got[0].Pid {
		want[0], want[1] = want[1], want[0]
	}
	ignore := cmp.Options{cmpopts.IgnoreFields(Process{}, "Hostname", "Start"), cmpopts.IgnoreFields(Use{}, "UUID")}
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Error(diff)
	}
	if hostname, _ := os.Hostname(); got[0].Hostname != hostname || got[0].Start == 0 {
		t.Errorf("hostname %q, start %d", got[0].Hostname, got[0].Start)
	}
}

// TestPeakUsed checks the driver's high-water mark. The mark covers all processes together, and
// excludes the memory of a dead process that has not been reaped yet.
func TestPeakUsed(t *testing.T) {
	machine := simtest.New(t, 2, 8*gib)
	oracle := open(t, machine)
	one, two := simtest.StartHolder(t, machine), simtest.StartHolder(t, machine)
	peak := func() uint64 {
		t.Helper()
		gpus, err := oracle.GPUs()
		if err != nil {
			t.Fatal(err)
		}
		if gpus[1].PeakUsedBytes != 0 {
			t.Errorf("GPU 1 had %d bytes in use", gpus[1].PeakUsedBytes)
		}
		return gpus[0].PeakUsedBytes
	}
	one.Hold(t, 0, 2*gib)
	two.Hold(t, 0, gib)
	one.Hold(t, 0, -gib)
	if got := peak(); got != 3*gib {
		t.Errorf("%d bytes after 2 GiB and 1 GiB, want 3 GiB", got)
	}
	one.Kill(t)
	two.Hold(t, 0, 2*gib)
	if got := peak(); got != 3*gib {
		t.Errorf("%d bytes after 1 GiB died and 3 GiB lived, want 3 GiB", got)
	}
	two.Hold(t, 0, gib)
	if got := peak(); got != 4*gib {
		t.Errorf("%d bytes after 4 GiB, want 4 GiB", got)
	}
}

// TestFinished kills a process, and checks the list of ended processes twice. The first list
// precedes the driver's detection of the end, and the second list follows the detection.
func TestFinished(t *testing.T) {
	machine := simtest.New(t, 2, 4*gib)
	oracle := open(t, machine)
	one := simtest.StartHolder(t, machine)
	one.Hold(t, 1, 3*gib)
	one.Hold(t, 1, -gib)
	one.Kill(t)
	want := []Finished{{Pid: one.Pid, SelfPid: one.Pid, Comm: comm,
		GPUs: []PastUse{{Index: 1, PeakBytes: 3 * gib}}}}
	check := func(when string) {
		t.Helper()
		got, err := oracle.Finished()
		if err != nil {
			t.Fatal(err)
		}
		ignore := cmp.Options{cmpopts.IgnoreFields(Finished{}, "Hostname", "Start", "End"),
			cmpopts.IgnoreFields(PastUse{}, "UUID")}
		if diff := cmp.Diff(want, got, ignore); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
		if live, err := oracle.Processes(); err != nil || len(live) != 0 {
			t.Errorf("%s: live processes %v, error %v", when, live, err)
		}
	}
	check("unnoticed")
	machine.Tool(t, "oracle", machine.Dir)
	check("noticed")
	if !simtest.StartHolder(t, machine).Hold(t, 1, 4*gib) {
		t.Error("the GPU has no room for the memory of a killed process")
	}
}

// TestContained reads about processes in pid namespaces from outside, during
// and after their lives.
func TestContained(t *testing.T) {
	machine := simtest.New(t, 1, gib)
	oracle := open(t, machine)
	holders := []*simtest.Holder{simtest.StartContainedHolder(t, machine), simtest.StartContainedHolder(t, machine)}
	want := map[int]uint64{}
	for i, holder := range holders {
		bytes := int64(i+1) * 1000
		holder.Hold(t, 0, bytes)
		want[holder.Pid] = uint64(bytes)
	}
	live, err := oracle.Processes()
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]uint64{}
	for _, process := range live {
		if process.SelfPid != 1 {
			t.Errorf("pid %d in its own namespace", process.SelfPid)
		}
		got[process.Pid] = process.GPUs[0].Bytes
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("live: %s", diff)
	}
	for _, holder := range holders {
		holder.Kill(t)
	}
	for _, noticed := range []bool{false, true} {
		if noticed {
			machine.Tool(t, "oracle", machine.Dir)
		}
		finished, err := oracle.Finished()
		if err != nil {
			t.Fatal(err)
		}
		got := map[int]uint64{}
		for _, process := range finished {
			got[process.Pid] = process.GPUs[0].PeakBytes
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("finished, noticed %v: %s", noticed, diff)
		}
	}
}

func TestOpenRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a state: %v", err)
	}
	for _, size := range []int64{0, 100, stateSize} {
		path := filepath.Join(dir, "state")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, ErrNotState) {
			t.Errorf("with %d zero bytes: %v", size, err)
		}
	}
}

// TestGPUTime shares a GPU between two processes. Each process gets half of the GPU's time.
func TestGPUTime(t *testing.T) {
	machine := simtest.New(t, 1, gib)
	oracle := open(t, machine)
	for range 2 {
		simtest.StartHolder(t, machine).Run(t, 0, time.Minute)
	}
	before := gpuTimes(t, machine, oracle)
	began := oracle.Clock()
	time.Sleep(100 * time.Millisecond)
	after := gpuTimes(t, machine, oracle)
	passed := oracle.Clock() - began
	if passed < uint64(100*time.Millisecond) {
		t.Fatalf("%d ns passed on the timeline", passed)
	}
	for pid := range after {
		got, want := after[pid]-before[pid], passed/2
		if slice := uint64(time.Millisecond); got+slice < want || got > want+slice {
			t.Errorf("process %d got %d ns of %d", pid, got, passed)
		}
	}
}

// gpuTimes brings the timeline up to now and returns GPU times by pid.
func gpuTimes(t *testing.T, machine *simtest.Machine, oracle *Oracle) map[int]uint64 {
	t.Helper()
	machine.Tool(t, "oracle", machine.Dir)
	processes, err := oracle.Processes()
	if err != nil {
		t.Fatal(err)
	}
	times := map[int]uint64{}
	for _, process := range processes {
		for _, use := range process.GPUs {
			times[process.Pid] = use.GPUTimeNs
		}
	}
	if len(times) != 2 {
		t.Fatalf("processes %v", processes)
	}
	return times
}
