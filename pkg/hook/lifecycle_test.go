// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// mainOf returns the runtime's id of a pod's main container.
func mainOf(uid string) string { return sandbox(uid).GetId() + "-main" }

// containersFrom returns containers without limits in the runtime's list, one of each pod.
func containersFrom(uids ...string) []runningContainer {
	var all []runningContainer
	for _, uid := range uids {
		c := &api.Container{Id: mainOf(uid), Name: "main"}
		all = append(all, runningContainer{Container: describe(sandbox(uid), c), id: c.GetId(), sandbox: sandbox(uid).GetId()})
	}
	return all
}

// wantLive compares the pods whose main container is live.
func (n *node) wantLive(uids ...string) {
	n.t.Helper()
	var want []string
	for _, uid := range uids {
		want = append(want, mainOf(uid))
	}
	if got := slices.Sorted(maps.Keys(n.hook.Holders())); !slices.Equal(got, want) {
		n.t.Errorf("live are %v, want %v", got, want)
	}
}

func (n *node) wantHeld(uid string, want bool) {
	n.t.Helper()
	if n.ledger.Holds(uid) != want {
		n.t.Errorf("pod %s holds GPUs: %t, want %t", uid, !want, want)
	}
}

// TestHolders checks the reports about running containers: allocation, GPUs, first process and mounts.
func TestHolders(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) { n.proc = proc })
	spec := n.run("u", "main=1024")
	id := mainOf("u")
	if held := n.hook.Holders()[id]; held.PodUID != "u" || held.Container != "main" || len(held.Devices) != 1 || held.Devices[0].UUID != gpuA {
		t.Errorf("the container holds %+v", held)
	}
	if uuids := n.hook.GPUsOf(id); !slices.Equal(uuids, []string{gpuA}) {
		t.Errorf("the container has the GPUs %v", uuids)
	}
	if uuids := n.hook.GPUsOf("unknown"); uuids != nil {
		t.Errorf("an unknown container has the GPUs %v", uuids)
	}
	if carried := n.hook.Carried(); len(carried) != 0 {
		t.Errorf("before the start, %v have a process", carried)
	}

	born(t, proc, testPID, "100")
	c := fromSpec(sandbox("u"), "main", spec)
	c.Pid = testPID
	n.hook.started(t.Context(), describe(sandbox("u"), c), id, sandbox("u").GetId())
	// A container with whole GPUs may have only the assignment.
	dir, err := n.hook.opts.Store.Dir("whole", "main")
	if err != nil {
		t.Fatal(err)
	}
	whole := adjust.Container{PodUID: "whole", Name: "main", PID: testPID, Mounts: []adjust.Mount{
		{Source: filepath.Join(dir, paths.Assignment), Destination: paths.ContainerAssignment},
	}}
	n.hook.started(t.Context(), whole, mainOf("whole"), sandbox("whole").GetId())
	n.wantLive("u", "whole")
	carried := n.hook.Carried()
	if got := carried[id]; len(carried) != 1 || got.PID != testPID || len(got.Mounts) != len(ourfiles.Required)+1 {
		t.Errorf("the containers carry %+v", carried)
	}

	n.ledger.Release("u")
	if held := n.hook.Holders()[id]; held.PodUID != "u" || held.Container != "main" || len(held.Devices) != 0 {
		t.Errorf("without an entry in the ledger, the container holds %+v", held)
	}
	if uuids := n.hook.GPUsOf(id); len(uuids) != 0 {
		t.Errorf("without an entry in the ledger, the container has the GPUs %v", uuids)
	}
	if !n.hook.Synchronized() {
		t.Error("the runtime has listed its containers")
	}
}

// TestASandboxThatEnds checks that all containers of a sandbox end with the sandbox, and that
// containers of other sandboxes remain.
func TestASandboxThatEnds(t *testing.T) {
	n := newNode(t)
	for _, uid := range []string{"u", "v"} {
		n.pod(uid, "main=1024")
	}
	end := func(uid string) {
		t.Helper()
		if err := n.runtime.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: sandbox(uid)}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string) {
		t.Helper()
		if got := n.hook.Unadjusted(); got != 1 || !n.hook.Unlimited(mainOf("v")) {
			t.Errorf("%s: %d containers run without limits, want the other one", when, got)
		}
	}
	if err := n.hook.synchronize(t.Context(), containersFrom("u", "v")); err != nil {
		t.Fatal(err)
	}
	end("u")
	want("after the audit")

	n.api.change(func() { n.api.away = true })
	if err := n.hook.synchronize(t.Context(), containersFrom("u", "v")); err != nil {
		t.Fatal(err)
	}
	end("u")
	n.api.change(func() { n.api.away = false })
	n.hook.Sweep()
	want("before the audit")

	mustCreate(t, n, "u")
	mustCreate(t, n, "v")
	changes := 0
	n.hook.opts.LiveChanged = func() { changes++ }
	end("u")
	n.wantLive("v")
	if changes != 1 {
		t.Errorf("%d changes of the live containers were reported, want 1", changes)
	}
}

// TestEachReportOfAnEndFreesTheGPU checks that each of the runtime's reports of an end suffices,
// since the runtime may send only one of them.
func TestEachReportOfAnEndFreesTheGPU(t *testing.T) {
	n := newNode(t)
	for name, end := range map[string]func(pod *api.PodSandbox, c *api.Container) error{
		"stop-container": func(pod *api.PodSandbox, c *api.Container) error {
			_, err := n.runtime.StopContainer(t.Context(), &api.StopContainerRequest{Pod: pod, Container: c})
			return err
		},
		"remove-container": func(pod *api.PodSandbox, c *api.Container) error {
			return n.runtime.RemoveContainer(t.Context(), &api.RemoveContainerRequest{Pod: pod, Container: c})
		},
		"stop-sandbox": func(pod *api.PodSandbox, _ *api.Container) error {
			return n.runtime.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: pod})
		},
		"remove-sandbox": func(pod *api.PodSandbox, _ *api.Container) error {
			return n.runtime.RemovePodSandbox(t.Context(), &api.RemovePodSandboxRequest{Pod: pod})
		},
	} {
		spec := n.run(name, "main=1024")
		n.deletePod(name)
		n.wantHeld(name, true)
		if err := end(sandbox(name), fromSpec(sandbox(name), "main", spec)); err != nil {
			t.Fatal(err)
		}
		n.wantHeld(name, false)
	}
}

// TestNothingIsFreedBeforeListsAreKnown checks that a pod keeps its GPUs until the runtime has listed
// its containers and the API server has listed its pods.
func TestNothingIsFreedBeforeListsAreKnown(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=1024")
	n.exit("u")
	n.api.change(func() { delete(n.api.pods, "u") })

	n.hook.synchronized = false
	n.hook.PodGone("u")
	n.wantHeld("u", true)
	n.hook.synchronized = true
	n.api.change(func() { n.api.away = true })
	n.hook.PodGone("u")
	n.wantHeld("u", true)
	n.api.change(func() { n.api.away = false })
	n.hook.PodGone("u")
	n.wantHeld("u", false)
}

// TestLostFilesKeepNoGPU checks that a sweep frees the GPU of a pod whose files are lost.
func TestLostFilesKeepNoGPU(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=1024")
	n.exit("u")
	if err := os.RemoveAll(filepath.Dir(n.containerDir("u"))); err != nil {
		t.Fatal(err)
	}
	n.api.change(func() { delete(n.api.pods, "u") })
	n.hook.Sweep()
	n.wantHeld("u", false)
}

// TestSweepsRepeat checks that Run sweeps without any event.
func TestSweepsRepeat(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=1024")
	n.exit("u")
	n.api.change(func() { delete(n.api.pods, "u") })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		n.hook.Run(ctx)
		close(done)
	}()
	eventually.Holds(t, 10*time.Second, "the GPU is free", func() bool { return !n.ledger.Holds("u") })
	cancel()
	<-done
}

// TestARunningContainerOfADeletedPodStays checks that a container which runs for longer than a start
// may take keeps its GPU after its pod was deleted.
func TestARunningContainerOfADeletedPodStays(t *testing.T) {
	proc := t.TempDir()
	n := newNode(t, func(n *node) { n.proc = proc })
	spec := n.run("u", "main=1024")
	born(t, proc, testPID, "100")
	c := fromSpec(sandbox("u"), "main", spec)
	c.Pid = testPID
	n.hook.started(t.Context(), describe(sandbox("u"), c), mainOf("u"), sandbox("u").GetId())
	n.deletePod("u")
	n.hook.dropUnreported(time.Now().Add(unstarted + time.Minute))
	n.hook.Sweep()
	n.wantHeld("u", true)
	n.wantLive("u")
}

// TestLateHandlersChangeNothing checks that a handler whose time has ended before it gets the lock
// changes nothing, because the runtime has another answer.
func TestLateHandlersChangeNothing(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	n.pod("v", "main=1024")
	spec := mustCreate(t, n, "u")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	v := &api.Container{Id: mainOf("v"), Name: "main"}
	if _, result, err := n.hook.create(ended, describe(sandbox("v"), v), v.GetId(), sandbox("v").GetId()); err == nil || result != outcomeRefused {
		t.Errorf("a late creation is %s: %v", result, err)
	}
	n.wantHeld("v", false)
	if err := n.hook.synchronize(ended, nil); err == nil {
		t.Error("a late list of the runtime's containers was taken over")
	}
	n.wantLive("u")
	n.exit("u")
	u := fromSpec(sandbox("u"), "main", spec)
	if n.hook.started(ended, describe(sandbox("u"), u), u.GetId(), sandbox("u").GetId()) {
		t.Error("a late start was recorded")
	}
	n.wantLive()
}

// TestARefusedStartIsNotLive checks that a container which the runtime created during the agent's
// absence is not live if its start is refused.
func TestARefusedStartIsNotLive(t *testing.T) {
	n := newNode(t, func(n *node) { n.proc = t.TempDir() }) // no process has files
	spec := n.run("u", "main=1024")
	n.stopHook()
	n.containers[0].State = api.ContainerState_CONTAINER_CREATED
	n.startHook()
	c := fromSpec(sandbox("u"), "main", spec)
	c.Pid = testPID
	if err := n.runtime.StartContainer(t.Context(), &api.StartContainerRequest{Pod: sandbox("u"), Container: c}); err == nil {
		t.Error("a container without its files was started")
	}
	n.wantLive()
}

// TestStoppedContainersAreNotTakenOver checks that a new agent takes over the running containers of
// the runtime's list, and not the stopped containers.
func TestStoppedContainersAreNotTakenOver(t *testing.T) {
	n := newNode(t)
	for _, uid := range []string{"a", "b"} {
		n.run(uid, "main=1024")
	}
	n.stopHook()
	n.containers[0].State = api.ContainerState_CONTAINER_STOPPED
	n.startHook()
	n.wantLive("b")
}

// TestFilesOfAnotherContainerAreNoLimits checks that a running container with the files of another
// container counts as a container without limits.
func TestFilesOfAnotherContainerAreNoLimits(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	n.pod("v", "main=1024")
	spec := mustCreate(t, n, "u")
	n.stopHook()
	n.keep(sandbox("v"), fromSpec(sandbox("v"), "main", spec))
	n.startHook()
	n.wantLive("u")
	if got := n.hook.Unadjusted(); got != 1 || !n.hook.Unlimited(mainOf("v")) {
		t.Errorf("%d containers run without limits, want 1", got)
	}
}

// TestAnAssignmentThatIsNotTheContainersIsIgnored checks that the agent adopts no invalid assignment,
// and no assignment of another container.
func TestAnAssignmentThatIsNotTheContainersIsIgnored(t *testing.T) {
	of := func(uid, container string) string {
		text, err := json.Marshal(placement.Allocation{PodUID: uid, Container: container, Kind: "app", Devices: []placement.Device{{UUID: gpuB, MemoryBytes: mib, Slots: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before, _, found := strings.Cut(of("u", "main"), `"devices"`)
	if !found {
		t.Fatal("the assignment has no devices")
	}
	for name, text := range map[string]string{
		"no JSON":           "{",
		"another type":      before + `"devices":7}`,
		"another pod":       of("v", "main"),
		"another container": of("u", "side"),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.run("u", "main=1024")
			n.stopHook()
			n.containers[0].Annotations[adjust.AssignmentAnnotation] = text
			if err := os.RemoveAll(n.cfg.Paths.RunDir); err != nil {
				t.Fatal(err)
			}
			n.startHook()
			if held := n.ledger.Allocations(); len(held) != 0 {
				t.Errorf("the ledger holds %+v", held)
			}
			if got := testutil.ToFloat64(n.hook.opts.Metrics.recovered); got != 0 {
				t.Errorf("%v assignments were recovered", got)
			}
		})
	}
}

// TestContainersThatEndBeforeTheAuditAreNotCounted checks that the audit omits containers that the
// runtime's last list lacks.
func TestContainersThatEndBeforeTheAuditAreNotCounted(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	n.stopHook()
	n.keep(sandbox("u"), fromSpec(sandbox("u"), "main", &rspec.Spec{Process: &rspec.Process{}}))
	n.api.change(func() { n.api.away = true })
	n.startHook()
	n.stopRuntime()
	n.mu.Lock()
	n.containers = nil
	n.mu.Unlock()
	n.startRuntime()
	n.waitRegistered()
	n.api.change(func() { n.api.away = false })
	n.hook.Sweep()
	if got := n.hook.Unadjusted(); got != 0 {
		t.Errorf("%d containers count as containers without limits, and the runtime has none", got)
	}
}

// TestEveryHandlerIsMeasured checks that each handler has a series of its durations.
func TestEveryHandlerIsMeasured(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	pod := sandbox("u")
	ctx := t.Context()
	if err := n.runtime.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}); err != nil {
		t.Fatal(err)
	}
	spec := mustCreate(t, n, "u")
	c := fromSpec(pod, "main", spec)
	if err := n.runtime.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
	if err := n.runtime.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
	if err := n.runtime.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: c}); err != nil {
		t.Fatal(err)
	}
	if err := n.runtime.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod}); err != nil {
		t.Fatal(err)
	}
	if err := n.runtime.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod}); err != nil {
		t.Fatal(err)
	}
	measured := map[string]bool{}
	for metric := range collect(n.hook.opts.Metrics.latency) {
		measured[metric.GetLabel()[0].GetValue()] = true
	}
	want := []string{"CreateContainer", "PostStartContainer", "RemoveContainer", "RemovePodSandbox", "RunPodSandbox",
		"StartContainer", "StopContainer", "StopPodSandbox", "Synchronize", "ValidateContainerAdjustment"}
	if got := slices.Sorted(maps.Keys(measured)); !slices.Equal(got, want) {
		t.Errorf("measured are %v, want %v", got, want)
	}
}

// TestRefusalsAreCounted checks that each reason has a series from the start, and that a refusal counts
// under its reason.
func TestRefusalsAreCounted(t *testing.T) {
	n := newNode(t)
	n.pod("huge", "main=16385")
	count := func() string {
		var all []string
		for metric := range collect(n.hook.opts.Metrics.refusals) {
			all = append(all, fmt.Sprint(metric.GetLabel()[0].GetValue(), " ", metric.GetCounter().GetValue()))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	var want []string
	for _, reason := range adjust.Reasons {
		want = append(want, fmt.Sprint(reason, " ", 0))
	}
	slices.Sort(want)
	if got := count(); got != strings.Join(want, ", ") {
		t.Errorf("before a refusal: %s", got)
	}
	if _, err := n.create("huge"); err == nil {
		t.Fatal("it was created")
	}
	if got := count(); got != strings.Replace(strings.Join(want, ", "), "placement 0", "placement 1", 1) {
		t.Errorf("after a refusal: %s", got)
	}
}
