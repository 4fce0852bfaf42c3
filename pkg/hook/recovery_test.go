package hook

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nri-vgpu/nri-vgpu/pkg/usagefs"
)

func TestReconnectsForEver(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=4096")
	mustCreate(t, n, "u")
	for range 3 {
		n.stopRuntime()
		n.startRuntime()
		n.waitRegistered()
	}
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Error("lost what runs")
	}
	n.pod("v", "main=4096")
	wantEnv(t, mustCreate(t, n, "v"), visibleDevices, gpuA)
	// What ended while nobody listened is found by Synchronize.
	n.stopRuntime()
	n.mu.Lock()
	n.containers = n.containers[:1]
	n.mu.Unlock()
	n.api.change(func() { delete(n.api.pods, "v") })
	n.startRuntime()
	n.waitRegistered()
	n.hook.Sweep()
	if _, ok := n.ledger.Get("v", "main"); ok {
		t.Error("what is gone still holds its GPU")
	}
}

// A container that was created and whose kubelet died then stays with the
// runtime for minutes: it must not hold a GPU for a pod that is gone.
func TestAContainerThatNeverStartedHoldsNothing(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=4096")
	spec := mustCreate(t, n, "u")
	again := func() {
		n.stopHook()
		n.containers[0].State = api.ContainerState_CONTAINER_CREATED
		n.startHook()
	}
	again()
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Fatal("freed although its pod is there and may start it")
	}
	post := &api.PostStartContainerRequest{Pod: sandbox("u"), Container: fromSpec(sandbox("u"), "main", spec)}
	if err := n.runtime.PostStartContainer(context.Background(), post); err != nil {
		t.Fatal(err)
	}
	n.deletePod("u")
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Error("freed under a container that was started while nobody listened")
	}
	again()
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); ok {
		t.Error("not freed although its pod is gone and it was never started")
	}
}

func TestAgentMayDie(t *testing.T) {
	n := newNode(t)
	n.pod("a", "main=10000")
	n.pod("b", "main=10000", "second=1000")
	mustCreate(t, n, "a")
	wantEnv(t, mustCreate(t, n, "b"), visibleDevices, gpuB)
	n.stopHook()
	n.startHook()
	for _, c := range []struct{ uid, name, gpu string }{{"a", "main", gpuA}, {"b", "main", gpuB}, {"b", "second", gpuB}} {
		given, ok := n.ledger.Get(c.uid, c.name)
		if !ok || given.Devices[0].UUID != c.gpu {
			t.Errorf("%s of %s: got %+v, %v", c.name, c.uid, given, ok)
		}
	}
	n.pod("c", "main=10000")
	if _, err := n.create("c"); err == nil {
		t.Error("what runs was given away twice")
	}
}

func TestLostFilesAreRecoveredFromTheRuntime(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=10000")
	mustCreate(t, n, "u")
	n.stopHook()
	if err := os.RemoveAll(n.cfg.Paths.RunDir); err != nil {
		t.Fatal(err)
	}
	n.startHook()
	given, ok := n.ledger.Get("u", "main")
	if !ok || given.Devices[0].UUID != gpuA || given.Devices[0].MemoryBytes != 10000*mib {
		t.Errorf("got %+v, %v", given, ok)
	}
	if got := testutil.ToFloat64(n.hook.Metrics.recovered); got != 1 {
		t.Errorf("recovered %v", got)
	}
}

func TestBadFilesArePutAside(t *testing.T) {
	good := `{"version":1,"sha256":"`
	for name, content := range map[string]string{
		"empty":     "",
		"truncated": good,
		"forged":    `{"version":1,"sha256":"00","allocation":{"podUID":"u","container":"main","kind":"app","devices":[]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "containers")
			store, err := NewStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "u", "main", assignmentFile)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			allocations, errs := store.Load()
			if len(allocations) != 0 || len(errs) != 1 || !strings.Contains(errs[0].Error(), path) {
				t.Errorf("got %v, %v", allocations, errs)
			}
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Error("it is still in its place")
			}
			if _, errs := store.Load(); len(errs) != 0 {
				t.Errorf("the second time: %v", errs)
			}
		})
	}
}

func TestNamesThatLeadElsewhereAreRefused(t *testing.T) {
	store, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/", ".hidden", "a\x00b", strings.Repeat("x", 300)} {
		if _, err := store.Dir(name, "main"); err == nil {
			t.Errorf("pod %q was taken", name)
		}
		if _, err := store.Dir("u", name); err == nil {
			t.Errorf("container %q was taken", name)
		}
		if store.Remove(name) == nil && len(name) < 300 {
			t.Errorf("pod %q was removed", name)
		}
	}
}

func TestRunningContainersWithoutLimitsAreCounted(t *testing.T) {
	n := newNode(t)
	n.pod("some", "main=1024")
	n.pod("none", "main")
	n.stopHook()
	for _, uid := range []string{"some", "none"} {
		n.keep(sandbox(uid), fromSpec(sandbox(uid), "main", &rspec.Spec{Process: &rspec.Process{}}))
	}
	counted := func(when string, want int) {
		t.Helper()
		if got := testutil.ToFloat64(n.hook.Metrics.unadjusted); got != float64(want) || n.hook.Unadjusted() != want {
			t.Errorf("%s: counted %v and %d, want %d", when, got, n.hook.Unadjusted(), want)
		}
	}
	n.startHook()
	counted("taken over", 1)
	n.stopRuntime()
	n.startRuntime()
	n.waitRegistered()
	counted("taken over again", 1)
	n.exit("none")
	counted("another has ended", 1)
	n.exit("some")
	counted("it has ended", 0)
}

// What a runtime had before it restarted is not counted, also while the API server is away.
func TestContainersOfAnEarlierRuntimeAreNotCounted(t *testing.T) {
	n := newNode(t)
	n.pod("some", "main=1024")
	n.stopHook()
	n.keep(sandbox("some"), fromSpec(sandbox("some"), "main", &rspec.Spec{Process: &rspec.Process{}}))
	n.startHook()
	if got := n.hook.Unadjusted(); got != 1 {
		t.Fatalf("counted %d, want 1", got)
	}
	n.api.change(func() { n.api.away = true })
	n.stopRuntime()
	n.mu.Lock()
	n.containers = nil
	n.mu.Unlock()
	n.startRuntime()
	n.waitRegistered()
	if got := n.hook.Unadjusted(); got != 0 {
		t.Errorf("counted %d of the runtime's that has none", got)
	}
}

// What ends before it was looked at, or without the runtime's telling, is not counted.
func TestEndedContainersWithoutLimitsAreNotCounted(t *testing.T) {
	n := newNode(t, func(n *node) { n.proc = "/proc" })
	n.pod("u", "main=1024")
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	bare := func(id string, pid int) runningContainer {
		return runningContainer{Container: Container{Namespace: "default", Pod: "pod-u", PodUID: "u", Name: "main", PID: pid}, id: id, sandbox: "s"}
	}
	n.api.change(func() { n.api.away = true })
	if err := n.hook.synchronize(t.Context(), []runningContainer{bare("gone", 0), bare("unseen", command.Process.Pid)}); err != nil {
		t.Fatal(err)
	}
	n.hook.stopped("gone")
	n.api.change(func() { n.api.away = false })
	n.hook.Sweep()
	if got := n.hook.Unadjusted(); got != 1 {
		t.Errorf("%d are counted, want the one that runs", got)
	}
	_ = command.Process.Kill()
	_ = command.Wait()
	n.hook.Sweep()
	if got := n.hook.Unadjusted(); got != 0 {
		t.Errorf("%d are counted, want none", got)
	}
}

// A runtime with NRI 0.12.4 or newer refuses what we do not answer in time.
func TestNoAnswerIsARefusal(t *testing.T) {
	n := newNode(t)
	adaptation.SetPluginRequestTimeout(200 * time.Millisecond)
	defer adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout)
	n.pod("u", "main=1024")
	n.hook.mu.Lock()
	_, err := n.create("u")
	n.hook.mu.Unlock()
	if err == nil {
		t.Error("a container was created without an answer")
	}
	eventually(t, func() bool {
		_, err := n.create("u")
		return err == nil
	})
}

func TestMultiGPU(t *testing.T) {
	n := newNode(t)
	pod := n.pod("u", "main=1024")
	limits := pod.Spec.Containers[0].Resources.Limits
	two := limits["nri-vgpu.io/vgpu-memory"]
	two.Set(2)
	limits["nri-vgpu.io/vgpu-number"] = two
	wantEnv(t, mustCreate(t, n, "u"), visibleDevices, gpuA+","+gpuB)
	_, err := n.create("u", addEnv(visibleDevices+"=all", visibleDevices+"=all"))
	if err == nil || !strings.Contains(err.Error(), "several GPUs") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkCreateContainer is what the runtime waits for, over its socket, with
// 500 pods on the node of which 50 share its GPUs. Where it is root, usage pages lie
// on file systems of their own.
func BenchmarkCreateContainer(b *testing.B) {
	n := newNode(b, func(n *node) {
		n.cfg.Node.SlotsPerGPU = 100
		n.mounts = os.Geteuid() == 0
	})
	if n.mounts {
		b.Cleanup(func() { _ = usagefs.Remove(n.hook.Store.Usage.Dir) })
	}
	for i := range 450 {
		n.pod(fmt.Sprintf("none-%d", i), "main")
	}
	for i := range 50 {
		uid := fmt.Sprintf("some-%d", i)
		n.pod(uid, "main=128")
		if _, err := n.create(uid); err != nil {
			b.Fatal(err)
		}
	}
	for _, kind := range []string{"some", "none"} {
		b.Run(kind, func(b *testing.B) {
			pod := sandbox(kind + "-7")
			var took []time.Duration
			for b.Loop() {
				// The runtime applies what plugins say to the request.
				req := &api.CreateContainerRequest{Pod: pod, Container: fromSpec(pod, "main", &rspec.Spec{Process: &rspec.Process{}})}
				begin := time.Now()
				if _, err := n.runtime.CreateContainer(context.Background(), req); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
