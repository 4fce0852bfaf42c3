// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// born creates a process in a proc file system of the test.
func born(t *testing.T, proc string, pid int, start string) {
	t.Helper()
	dir := filepath.Join(proc, strconv.Itoa(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	stat := fmt.Sprintf("%d (a) (b c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %s 20 21", pid, start)
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600); err != nil {
		t.Fatal(err)
	}
}

func died(t *testing.T, proc string, pid int) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(proc, strconv.Itoa(pid))); err != nil {
		t.Fatal(err)
	}
}

func TestFirstProcess(t *testing.T) {
	proc := t.TempDir()
	born(t, proc, 7, "100")
	p := findProcess(proc, 7)
	if p.pid != 7 || p.start != "100" || p.ended(proc) {
		t.Errorf("got %+v, ended: %v", p, p.ended(proc))
	}
	born(t, proc, 7, "200")
	if !p.ended(proc) {
		t.Error("another process that has its number is taken for it")
	}
	died(t, proc, 7)
	if !p.ended(proc) {
		t.Error("it is not seen to have gone")
	}
	unknown := []firstProcess{findProcess(proc, 7), findProcess(proc, 0)}
	for range 2 {
		for _, p := range unknown {
			if p.ended(proc) {
				t.Errorf("%+v, which is not known, is taken for ended", p)
			}
		}
		born(t, proc, 7, "300")
	}
	for _, stat := range []string{"7 (a) S 1 2", "7 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18"} {
		if err := os.WriteFile(filepath.Join(proc, "7", "stat"), []byte(stat), 0o600); err != nil {
			t.Fatal(err)
		}
		if p.ended(proc) || findProcess(proc, 7) != (firstProcess{}) {
			t.Error("a process is known by a stat without its start")
		}
	}
	if self := findProcess("/proc", os.Getpid()); self.start == "" || self.ended("/proc") {
		t.Errorf("this process is %+v", self)
	}
}

// TestAnUnreportedEndFreesTheGPU checks that the hook releases the GPUs of containers whose end
// the runtime did not report because of its restart.
func TestAnUnreportedEndFreesTheGPU(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) { n.proc = proc })
	for pid, uid := range []string{"synced", "started", "unknown", "lives"} {
		n.run(uid, "main=1024")
		born(t, proc, pid+1, "100")
	}
	for _, c := range n.containers {
		switch c.GetPodSandboxId() {
		case sandbox("synced").GetId():
			c.Pid = 1
		case sandbox("lives").GetId():
			c.Pid = 4
		}
	}
	n.stopRuntime()
	n.startRuntime()
	n.waitRegistered()
	started := n.containers[1]
	started.Pid = 2
	n.hook.started(t.Context(), describe(sandbox("started"), started), started.GetId(), started.GetPodSandboxId())
	holds := func(uid string) bool { _, ok := n.ledger.Get(uid, "main"); return ok }
	for pid, uid := range []string{"synced", "started", "unknown"} {
		n.deletePod(uid)
		n.hook.Sweep()
		if !holds(uid) {
			t.Errorf("%s was freed while it lived", uid)
		}
		died(t, proc, pid+1)
	}
	n.hook.Sweep()
	for uid, want := range map[string]bool{"synced": false, "started": false, "unknown": true, "lives": true} {
		if holds(uid) != want {
			t.Errorf("%s holds its GPU: %v", uid, !want)
		}
	}
}

// TestAnUnlistedContainerKeepsItsGPU checks that a running container keeps its GPU if a restarted
// runtime does not list the container. containerd omits a container whose state it failed to load
// (ListContainers in its nri_api_linux.go).
func TestAnUnlistedContainerKeepsItsGPU(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) { n.proc = proc })
	n.run("u", "main=1024")
	born(t, proc, 1, "100")
	n.containers[0].Pid = 1
	again := func(listed []*api.Container) {
		t.Helper()
		n.stopRuntime()
		n.mu.Lock()
		n.containers = listed
		n.mu.Unlock()
		n.startRuntime()
		n.waitRegistered()
	}
	again(n.containers)
	again(nil)
	n.deletePod("u")
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); !ok || len(n.hook.LiveDirs()) != 1 {
		t.Error("the GPU is free while the container runs")
	}
	died(t, proc, 1)
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); ok {
		t.Error("the container has ended and holds its GPU")
	}
}

// TestAContainerThatNeverStartsFreesTheGPU checks that the hook releases the GPU of a container
// whose failed creation the runtime did not report.
func TestAContainerThatNeverStartsFreesTheGPU(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=1024")
	n.deletePod("u")
	changes := 0
	n.hook.opts.LiveChanged = func() { changes++ }
	drop := func(after time.Duration) { n.hook.dropUnreported(time.Now().Add(after)) }
	drop(unstarted - time.Minute)
	if changes != 0 {
		t.Errorf("%d changes were reported, want none", changes)
	}
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Error("it was freed while it may yet start")
	}
	drop(unstarted + time.Minute)
	if changes != 1 {
		t.Errorf("%d changes were reported, want 1", changes)
	}
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); ok {
		t.Error("the pod never frees its GPU")
	}
}

// TestARunningContainerGoesBeforeItsFiles checks that the annotation of a running container
// overrides its files.
func TestARunningContainerGoesBeforeItsFiles(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	n.stopHook()
	store := n.hook.opts.Store
	wrong, _ := n.ledger.Get("u", "main")
	wrong.Devices[0] = placement.Device{UUID: gpuB, MemoryBytes: 1 << 20, Slots: 1}
	if err := store.Rewrite(wrong); err != nil {
		t.Fatal(err)
	}
	n.startHook()
	check := func(where string, given placement.Allocation) {
		t.Helper()
		if d := given.Devices[0]; d.UUID != gpuA || d.MemoryBytes != 4096*mib {
			t.Errorf("%s it has %+v", where, d)
		}
	}
	given, _ := n.ledger.Get("u", "main")
	check("by the ledger", given)
	kept, errs := store.Load()
	if len(kept) != 1 || len(errs) != 0 {
		t.Fatalf("got %v, %v", kept, errs)
	}
	check("by its files", kept[0])
	if got := testutil.ToFloat64(n.hook.opts.Metrics.recovered); got != 1 {
		t.Errorf("recovered %v", got)
	}
}

func TestAllocationsWithoutARequestAreReported(t *testing.T) {
	n := newNode(t)
	pod := n.pod("u", "main=4096")
	n.pod("v", "main=4096")
	both := n.pod("w", "main=1024", "side=1024")
	n.pod("gone", "main=1024")
	for _, uid := range []string{"u", "v", "w", "gone"} {
		mustCreate(t, n, uid)
	}
	n.stopHook()
	n.api.change(func() {
		pod.Spec.Containers[0].Resources.Limits = nil
		both.Spec.Containers[1].Resources.Limits = nil
		delete(n.api.pods, "gone")
	})
	n.startHook()
	for range 2 {
		n.hook.Sweep()
	}
	if got := testutil.ToFloat64(n.hook.opts.Metrics.unexplained); got != 2 {
		t.Errorf("%v unexplained allocations were reported, want 2", got)
	}
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Error("a running container lost its GPU")
	}
}
