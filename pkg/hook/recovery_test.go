// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/usagefs"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

func TestReconnectsForEver(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	for range 3 {
		n.stopRuntime()
		n.startRuntime()
		n.waitRegistered()
	}
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Error("lost what runs")
	}
	n.pod("v", "main=4096")
	wantEnv(t, mustCreate(t, n, "v"), adjust.VisibleDevices, gpuA)
	// Synchronize finds the containers that ended while the agent was disconnected.
	n.stopRuntime()
	n.mu.Lock()
	n.containers = n.containers[:1]
	n.mu.Unlock()
	n.api.change(func() { delete(n.api.pods, "v") })
	n.startRuntime()
	n.waitRegistered()
	n.hook.Sweep()
	if _, ok := n.ledger.Get("v", "main"); ok {
		t.Error("a pod that is gone holds its GPU")
	}
}

// TestAContainerThatNeverStartedHoldsNothing checks that a container that never started holds no
// GPU for a deleted pod. The runtime keeps the container for minutes if kubelet dies after its
// creation.
func TestAContainerThatNeverStartedHoldsNothing(t *testing.T) {
	n := newNode(t)
	spec := n.run("u", "main=4096")
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
		t.Error("the GPU of a container that started during the agent's absence was freed")
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
	wantEnv(t, mustCreate(t, n, "b"), adjust.VisibleDevices, gpuB)
	n.restartHook()
	for _, c := range []struct{ uid, name, gpu string }{{"a", "main", gpuA}, {"b", "main", gpuB}, {"b", "second", gpuB}} {
		given, ok := n.ledger.Get(c.uid, c.name)
		if !ok || given.Devices[0].UUID != c.gpu {
			t.Errorf("%s of %s: got %+v, %v", c.name, c.uid, given, ok)
		}
	}
	n.pod("c", "main=10000")
	if _, err := n.create("c"); err == nil {
		t.Error("the GPU of a running container was allocated twice")
	}
}

func TestLostFilesAreRecoveredFromTheRuntime(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=10000")
	n.stopHook()
	if err := os.RemoveAll(n.cfg.Paths.RunDir); err != nil {
		t.Fatal(err)
	}
	n.startHook()
	given, ok := n.ledger.Get("u", "main")
	if !ok || given.Devices[0].UUID != gpuA || given.Devices[0].MemoryBytes != 10000*mib {
		t.Errorf("got %+v, %v", given, ok)
	}
	if got := testutil.ToFloat64(n.hook.opts.Metrics.recovered); got != 1 {
		t.Errorf("recovered %v", got)
	}
}

// TestALeaseDelaysNoAgent checks that an agent starts although a container with a whole GPU has a lease
// on its assignment, which the container has mounted. An open of the file would wait for 45 s.
func TestALeaseDelaysNoAgent(t *testing.T) {
	n := newNode(t)
	spec := n.run("u", "main=16384")
	m, ok := mountAt(spec, paths.ContainerAssignment)
	if !ok {
		t.Fatal("it has no whole GPU")
	}
	tenant, err := os.Open(m.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer tenant.Close()
	if _, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	n.stopHook()
	begin := time.Now()
	n.startHook()
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the agent started within %v", took)
	}
	if given, ok := n.ledger.Get("u", "main"); !ok || given.Devices[0].UUID != gpuA {
		t.Errorf("the container holds %+v", given)
	}
	if _, err := n.hook.opts.Store.Assignment("u", "main"); err != nil {
		t.Error(err)
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
		if got := testutil.ToFloat64(n.hook.opts.Metrics.unadjusted); got != float64(want) || n.hook.Unadjusted() != want {
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
	n.hook.Sweep()
	counted("its process is not known", 1)
	n.exit("some")
	counted("it has ended", 0)
}

// TestContainersAreListedWithoutTheirPod checks that the agent knows a container with limits whose pod
// the runtime does not list. After a restart, containerd lists no pod whose state it failed to load
// (ListPodSandboxes in its nri_api_linux.go), and lists the pod's containers.
func TestContainersAreListedWithoutTheirPod(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) {
		n.proc = proc
		n.cfg.Guard.StopUnadjusted = true
	})
	n.run("u", "main=1024")
	n.stopRuntime()
	pid, ended := process(t, proc, "u")
	born(t, proc, pid, "100")
	n.mu.Lock()
	n.containers[0].Pid, n.sandboxes = uint32(pid), nil
	n.mu.Unlock()
	n.startRuntime()
	n.waitRegistered()
	if n.hook.Unadjusted() != 0 || ended() != 0 {
		t.Errorf("without limits run %d containers; the container has ended by signal %d", n.hook.Unadjusted(), ended())
	}
	n.deletePod("u")
	n.hook.Sweep()
	if _, ok := n.ledger.Get("u", "main"); !ok {
		t.Error("the GPU is free while the container runs")
	}
}

// TestContainersOfAnEarlierRuntimeAreNotCounted checks that Unadjusted does not count containers
// from before the runtime's restart, even while the API server is unreachable.
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

// TestEndedContainersWithoutLimitsAreNotCounted checks that Unadjusted does not count a container
// that ends before its audit, or whose end the runtime does not report.
func TestEndedContainersWithoutLimitsAreNotCounted(t *testing.T) {
	n := newNode(t, func(n *node) { n.proc = "/proc" })
	n.pod("u", "main=1024")
	command := exec.Command("sleep", "600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	bare := func(id string, pid int) runningContainer {
		return runningContainer{Container: adjust.Container{Namespace: "default", Pod: "pod-u", PodUID: "u", Name: "main", PID: pid}, id: id, sandbox: "s"}
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
	if !n.hook.Unlimited("unseen") || n.hook.Unlimited("gone") {
		t.Error("only the running container must count as a container without limits")
	}
	_ = command.Process.Kill()
	_ = command.Wait()
	n.hook.Sweep()
	if got := n.hook.Unadjusted(); got != 0 {
		t.Errorf("%d are counted, want none", got)
	}
	if n.hook.Unlimited("unseen") {
		t.Error("it is known as one without limits after its end")
	}
}

// TestNoAnswerIsARefusal checks that a runtime with NRI 0.12.4 or newer refuses a container if the
// plugin does not answer in time.
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
	eventually.Holds(t, 10*time.Second, "the container is created", func() bool {
		spec, err := n.create("u")
		if err == nil {
			// The runtime must not create the container without the plugin.
			wantEnv(t, spec, adjust.VisibleDevices, gpuA)
		}
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
	wantEnv(t, mustCreate(t, n, "u"), adjust.VisibleDevices, gpuA+","+gpuB)
	_, err := n.create("u", addEnv(adjust.VisibleDevices+"=all", adjust.VisibleDevices+"=all"))
	if err == nil || !strings.Contains(err.Error(), "several GPUs") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkCreateContainer measures how long the runtime waits over its socket. The node
// has 500 pods, of which 50 share its GPUs. If the benchmark runs as root, each usage page
// is on its own file system.
func BenchmarkCreateContainer(b *testing.B) {
	n := newNode(b, func(n *node) {
		n.cfg.Node.SlotsPerGPU = 100
		n.mounts = os.Geteuid() == 0
	})
	if n.mounts {
		b.Cleanup(func() { _ = usagefs.Remove(n.hook.opts.Store.Usage.Dir) })
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
				// The runtime adds the adjustments of the plugins to the request.
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
