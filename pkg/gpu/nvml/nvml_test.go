// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// simulator is the directory of the simulated driver, which the tests load by dlopen. "make build"
// builds the simulator.
const simulator = "../../../build/gpusim"

func gpusim(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(simulator, "gpusim"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("gpusim %v: %v: %s (run make build)", args, err, out)
	}
}

// TestDriver simulates all states of a driver, since a process loads a driver only once. The kernel
// loads the driver while the agent runs; then the driver loses a GPU, hangs, and recovers.
func TestDriver(t *testing.T) {
	library, err := filepath.Abs(filepath.Join(simulator, libraryName))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Setenv("GPUSIM_STATE", filepath.Join(dir, "state"))
	inv := gpu.NewInventory(New(Options{Library: library}), 200*time.Millisecond)

	if _, err := inv.Refresh(t.Context()); !errors.Is(err, ErrDriverNotLoaded) || !strings.Contains(err.Error(), "modprobe nvidia") {
		t.Errorf("without a driver: got %v", err)
	}

	gpusim(t, "create", "--gpus", "2", "--memory", "16GiB", dir)
	before, err := inv.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkInventory(t, before)

	checkProcesses(t, inv, dir, before)

	gpusim(t, "inject", "--gpu", "1", "lost", dir)
	gpus, err := inv.Refresh(t.Context())
	if err != nil || len(gpus) != 2 || !gpus[0].Healthy {
		t.Fatalf("with a GPU lost: got %+v, %v", gpus, err)
	}
	if g := gpus[1]; g.Healthy || !strings.Contains(g.Reason, "lost") || g.UUID != before[1].UUID || g.MemoryBytes != before[1].MemoryBytes {
		t.Errorf("the lost GPU is %+v", g)
	}
	gpusim(t, "inject", "clear", dir)
	mustRecover(t, inv, before)

	gpusim(t, "inject", "--gpu", "1", "query-error", "999", dir)
	gpus, err = inv.Refresh(t.Context())
	if err != nil || len(gpus) != 2 || gpus[1].Healthy || !strings.Contains(gpus[1].Reason, "999") {
		t.Fatalf("with a GPU that fails queries: got %+v, %v", gpus, err)
	}
	known := before[1]
	known.Healthy, known.Reason = gpus[1].Healthy, gpus[1].Reason
	if diff := cmp.Diff(known, gpus[1]); diff != "" {
		t.Errorf("with a GPU that fails queries: %s", diff)
	}
	gpusim(t, "inject", "clear", dir)
	mustRecover(t, inv, before)

	gpusim(t, "inject", "--gpu", "0", "recovery", "1", dir)
	gpus, err = inv.Refresh(t.Context())
	if err != nil || gpus[0].Healthy || !strings.Contains(gpus[0].Reason, "--gpu-reset") || !gpus[0].RecoveryKnown || !gpus[1].Healthy {
		t.Fatalf("with a GPU to be reset: got %+v, %v", gpus, err)
	}
	gpusim(t, "inject", "--gpu", "0", "recovery", "0", dir)
	mustRecover(t, inv, before)

	checkEvents(t, library, dir, before)

	gpusim(t, "inject", "nvml-hang", "1", dir)
	begin := time.Now()
	gpus, err = inv.Refresh(t.Context())
	if waited := time.Since(begin); err == nil || waited > 900*time.Millisecond {
		t.Errorf("with a hanging driver: got %v after %v", err, waited)
	}
	if len(gpus) != 2 || gpus[0].Healthy || gpus[1].Healthy {
		t.Errorf("with a hanging driver: got %+v", gpus)
	}
	gpusim(t, "inject", "clear", dir)
	mustRecover(t, inv, before)
}

// checkEvents receives events of a driver that loses a GPU and recovers it.
func checkEvents(t *testing.T, library, dir string, gpus []gpu.GPU) {
	t.Helper()
	events := NewEvents(Options{Library: library})
	defer events.Close()
	next := func(want gpu.XID) {
		t.Helper()
		if got, err := events.Next(time.Second); err != nil || got != want {
			t.Fatalf("got %+v, %v, want %+v", got, err, want)
		}
	}
	nothing := func() {
		t.Helper()
		if x, err := events.Next(10 * time.Millisecond); !errors.Is(err, gpu.ErrNoEvent) {
			t.Fatalf("got %+v, %v", x, err)
		}
	}
	nothing()
	gpusim(t, "inject", "--gpu", "1", "xid", "31", dir)
	next(gpu.XID{UUID: gpus[1].UUID, Number: 31})
	gpusim(t, "inject", "--gpu", "0", "lost", dir)
	gpusim(t, "inject", "--gpu", "1", "xid", "48", dir)
	next(gpu.XID{UUID: gpus[0].UUID, Number: 79})
	next(gpu.XID{UUID: gpus[1].UUID, Number: 48})
	if _, err := events.Next(time.Second); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("with a GPU lost: got %v", err)
	}
	nothing() // the other GPU still reports events
	gpusim(t, "inject", "--gpu", "1", "xid", "95", dir)
	next(gpu.XID{UUID: gpus[1].UUID, Number: 95})
	gpusim(t, "inject", "clear", dir)
	nothing()
	gpusim(t, "inject", "--gpu", "0", "xid", "13", dir)
	next(gpu.XID{UUID: gpus[0].UUID, Number: 13})

	// A GPU that cannot be registered does not silence the other GPU.
	gpusim(t, "inject", "--gpu", "0", "query-error", "999", dir)
	events.Close()
	nothing()
	gpusim(t, "inject", "--gpu", "1", "xid", "48", dir)
	next(gpu.XID{UUID: gpus[1].UUID, Number: 48})
	gpusim(t, "inject", "--gpu", "1", "query-error", "999", dir)
	events.Close()
	if _, err := events.Next(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "999") {
		t.Errorf("without any GPU that reports events: got %v", err)
	}
	gpusim(t, "inject", "clear", dir)
	nothing()
	gpusim(t, "inject", "--gpu", "0", "xid", "13", dir)
	next(gpu.XID{UUID: gpus[0].UUID, Number: 13})
}

func checkInventory(t *testing.T, gpus []gpu.GPU) {
	t.Helper()
	if len(gpus) != 2 {
		t.Fatalf("got %+v", gpus)
	}
	for i, g := range gpus {
		if !g.Healthy || g.Index != i || g.MemoryBytes != 16<<30 || g.Name == "" || g.Multiprocessors == 0 ||
			!strings.HasPrefix(g.UUID, "GPU-") || strings.Count(g.PCIBusID, ":") != 2 {
			t.Errorf("got %+v", g)
		}
	}
	if gpus[0].UUID == gpus[1].UUID || gpus[0].Minor == gpus[1].Minor {
		t.Errorf("two GPUs are one: %+v", gpus)
	}
}

// checkProcesses starts a process that holds memory of the second GPU, and checks that the driver
// lists the process.
func checkProcesses(t *testing.T, inv *gpu.Inventory, dir string, gpus []gpu.GPU) {
	t.Helper()
	holder := simtest.StartHolder(t, simtest.At(t, dir))
	if !holder.Hold(t, 1, 1<<30) {
		t.Fatal("the GPU has no memory")
	}
	got, err := inv.Processes(t.Context())
	want := map[string][]gpu.Process{gpus[0].UUID: {}, gpus[1].UUID: {{PID: holder.Pid, Bytes: 1 << 30, APIs: gpu.Compute}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	active, err := inv.Activity(t.Context(), time.Second)
	idle := 0.0
	wantActive := map[string][]gpu.Activity{gpus[0].UUID: {}, gpus[1].UUID: {{Process: gpu.Process{PID: holder.Pid, Bytes: 1 << 30, APIs: gpu.Compute}, Utilisation: &idle}}}
	if diff := cmp.Diff(wantActive, active); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	checkKinds(t, inv, dir, gpus[1].UUID, holder.Pid)
	checkSamples(t, inv, dir, gpus[1].UUID, holder)
	gpusim(t, "inject", "--gpu", "0", "lost", dir)
	got, err = inv.Processes(t.Context())
	delete(want, gpus[0].UUID)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("with a GPU lost: %v\n%s", err, diff)
	}
	gpusim(t, "inject", "clear", dir)
	holder.Kill(t)
}

// checkKinds starts processes that use graphics and video on the second GPU, and checks that the
// driver lists the kinds.
func checkKinds(t *testing.T, inv *gpu.Inventory, dir, uuid string, computes int) {
	t.Helper()
	machine := simtest.At(t, dir)
	want := map[int]gpu.Process{computes: {PID: computes, Bytes: 1 << 30, APIs: gpu.Compute}}
	for memory, kind := range map[uint64]struct {
		apis gpu.APIs
		args []string
	}{
		1 << 20: {gpu.Graphics, []string{"--graphics"}},
		2 << 20: {gpu.Compute | gpu.Video, []string{"--encode", "30"}},
		3 << 20: {gpu.Graphics | gpu.Video, []string{"--graphics", "--decode", "5"}},
	} {
		pid := machine.Use(t, 1, memory, kind.args...)
		want[pid] = gpu.Process{PID: pid, Bytes: memory, APIs: kind.apis}
	}
	// The driver reports the use of the decoder after the first period.
	eventually.Succeeds(t, 5*time.Second, "the driver reports each kind of use", func(ctx context.Context) error {
		listed, err := inv.Processes(ctx)
		if err != nil {
			return err
		}
		got := map[int]gpu.Process{}
		for _, p := range listed[uuid] {
			got[p.PID] = p
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
	for pid := range want {
		if pid != computes {
			machine.EndUse(t, pid)
		}
	}
}

// checkSamples measures a process while samples arrive between the query for their number and the
// query for the samples. The driver then returns NVML_ERROR_INSUFFICIENT_SIZE.
func checkSamples(t *testing.T, inv *gpu.Inventory, dir, uuid string, holder *simtest.Holder) {
	t.Helper()
	holder.Run(t, 1, time.Minute)
	measured := func(ctx context.Context) error {
		samples, err := inv.Samples(ctx, time.Now().Add(-time.Minute))
		if err != nil {
			return err
		}
		if got := samples[uuid].Processes; len(got) < 2 || got[0].PID != holder.Pid {
			return fmt.Errorf("got %+v, want two samples of process %d", got, holder.Pid)
		}
		return nil
	}
	eventually.Succeeds(t, 5*time.Second, "the driver has samples", measured)
	gpusim(t, "inject", "--gpu", "1", "late-samples", "2", dir)
	if err := measured(t.Context()); err != nil {
		t.Errorf("with samples that arrive late: %v", err)
	}
}

// mustRecover waits until the inventory is as before.
func mustRecover(t *testing.T, inv *gpu.Inventory, want []gpu.GPU) {
	t.Helper()
	eventually.Succeeds(t, 5*time.Second, "the inventory is as before", func(ctx context.Context) error {
		gpus, err := inv.Refresh(ctx)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, gpus); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

func TestCoresPerMultiprocessor(t *testing.T) {
	tests := []struct{ major, minor, want int }{
		{3, 5, 192}, {5, 2, 128}, {6, 0, 64}, {6, 1, 128}, {7, 0, 64}, {7, 5, 64}, {8, 0, 64}, {8, 6, 128}, {9, 0, 128}, {10, 0, 128},
	}
	for _, tt := range tests {
		if got := coresPerMultiprocessor(tt.major, tt.minor); got != tt.want {
			t.Errorf("%d.%d: got %d, want %d", tt.major, tt.minor, got, tt.want)
		}
	}
}

func TestBusID(t *testing.T) {
	var chars [32]int8
	for i, c := range "00000000:3B:00.0" {
		chars[i] = int8(c)
	}
	if got := busID(chars); got != "00000000:3B:00.0" {
		t.Errorf("got %q", got)
	}
}
