// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// Container runtimes fail open: if a plugin is absent, hangs or dies, the runtime creates the
// container as its image requests. These tests break the agent in each of these ways. The node's
// default runtime injects all GPUs into an image that requests all GPUs. Then the tests check which
// container got which GPU. Related tests are:
//
// - TestClosedAtBootWithTheAgentLate has no agent.
// - TestMountsOverOursAreRefused has an agent that answers with an error.
// - TestMountsOverOursByDetoursAreRefused has an agent that answers StartContainer with an error.
// - TestRequiredPlugin has a runtime that requires the plugin.
// - TestNoAnswerIsARefusal of pkg/hook has a runtime that heeds a failure policy.

// kinds are the three kinds of pods that tests create while the agent is broken.
type kinds struct {
	asks, greedy, plain *corev1.Pod
}

func newKinds(prefix string) kinds {
	asks := filler("main", testbed.Limits{testbed.Memory: 1024})
	asks.Image = testbed.CUDAImage
	return kinds{
		asks:   testbed.Pod(prefix+"-asks", asks),
		greedy: testbed.Pod(prefix+"-greedy", cudaContainer(nil)),
		plain:  testbed.Pod(prefix+"-plain", testbed.Container("main", nil, "info")),
	}
}

func refusedBy(who string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].State.Waiting != nil && strings.Contains(status[0].State.Waiting.Message, who)
	}
}

const theGuard = "nri-vgpu's guard refuses"

// waitRefused waits until the guard has refused a pod's container, which kubelet keeps retrying.
func waitRefused(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	nudge := bed.Nudger(name)
	refused, err := bed.WaitPod(t.Context(), name, "refused by the guard", patience, func(pod *corev1.Pod) bool {
		nudge(t.Context())
		return refusedBy(theGuard)(pod)
	})
	if err != nil {
		t.Fatal(err)
	}
	return refused
}

// checkBroken creates pods while the agent is broken, and checks that pods that may want a GPU are
// refused. All other pods start and see no GPU.
func checkBroken(t *testing.T, k kinds) {
	t.Helper()
	for _, pod := range []*corev1.Pod{k.plain, k.asks, k.greedy} {
		create(t, pod)
	}
	checkSeesNone(t, k.plain)
	for _, pod := range []*corev1.Pod{k.asks, k.greedy} {
		if bytes := held(t, waitRefused(t, pod.Name)); len(bytes) != 0 {
			t.Errorf("%s holds %v while the agent is broken", pod.Name, bytes)
		}
	}
}

// checkRecovered checks that every pod got its request once the agent is back.
func checkRecovered(t *testing.T, k kinds) {
	t.Helper()
	started(t, k.asks.Name)
	checkFilled(t, k.asks.Name, gib)
	started(t, k.greedy.Name)
	checkSeesNone(t, k.greedy)
}

func checkSeesNone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := bed.WaitSucceeded(t.Context(), pod.Name, patience); err != nil {
		t.Fatal(err)
	}
	var info testbed.Info
	if err := bed.WaitResult(t.Context(), pod.Name, "main", patience, &info); err != nil {
		t.Fatal(err)
	}
	if len(info.CUDA.Devices) != 0 {
		t.Errorf("%s requests no GPU and sees %d", pod.Name, len(info.CUDA.Devices))
	}
}

// TestClosedWhileTheAgentHangs stops the agent's process. The runtime waits for two seconds, drops
// the agent and continues.
func TestClosedWhileTheAgentHangs(t *testing.T) {
	guarded(t)
	check := untouched(t)
	// The image names no GPU, so the guard finds the pod's request only in the list.
	again := testbed.Pod("again", filler("main", testbed.Limits{testbed.Memory: 2048}))
	again.Spec.RestartPolicy = corev1.RestartPolicyAlways
	create(t, again)
	uuid := checkFilled(t, "again", 2*gib)
	resume := stopped(t)
	if err := bed.KillContainer(running(t, "again")); err != nil {
		t.Fatal(err)
	}
	k := newKinds("hung")
	checkBroken(t, k)
	waitRefused(t, "again")
	check()
	resume()
	checkRecovered(t, k)
	started(t, "again")
	if after := checkFilled(t, "again", 2*gib); after != uuid {
		t.Errorf("the container was on %s and is on %s after its restart", uuid, after)
	}
	check()
}

// TestClosedWhileTheGuardHangs stops the guard's process while the agent is down. The runtime then
// drops the guard, and calls the stand-in for the same container.
func TestClosedWhileTheGuardHangs(t *testing.T) {
	guarded(t)
	check := untouched(t)
	back := away(t)
	guard := guardPid(t)
	signal(t, guard, syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(guard, syscall.SIGCONT) }) // unless the runtime has killed the guard
	k := newKinds("unguarded")
	checkBroken(t, k)
	check()
	back()
	checkRecovered(t, k)
	check()
}

// TestClosedWhenItBreaksInARequest breaks the agent during a request, by a relay between the
// runtime and the agent. To the runtime, the death of an agent looks like a broken connection. The
// test really kills the agent only once, because kubelet backs off its restarts.
func TestClosedWhenItBreaksInARequest(t *testing.T) {
	guarded(t)
	check := untouched(t)
	r := newRelay(t)
	t.Run("the connection breaks", func(t *testing.T) {
		k := newKinds("cut")
		checkInRequest(t, r, cut, k.asks, k.greedy)
		checkRecovered(t, k)
	})
	t.Run("the agent is killed", func(t *testing.T) {
		k := newKinds("killed")
		checkInRequest(t, r, func(net.Conn, net.Conn) { signal(t, agentPid(t), syscall.SIGKILL) }, k.greedy)
		started(t, k.greedy.Name)
		checkSeesNone(t, k.greedy)
	})
	t.Run("the runtime requires the plugin", func(t *testing.T) {
		configureContainerd(t, requirePlugin)
		k := newKinds("required")
		checkInRequest(t, r, cut, k.asks, k.greedy)
		checkRecovered(t, k)
	})
	t.Run("before the container starts", func(t *testing.T) { checkBeforeStart(t, r) })
	t.Run("the agent is too slow to adopt the running containers", func(t *testing.T) {
		waitRegistered(t)
		acted := r.on("Synchronize", "", func(net.Conn, net.Conn) { time.Sleep(3 * time.Second) })
		r.cut()
		if !acted() {
			t.Fatal("the runtime did not list the running containers")
		}
		create(t, testbed.Pod("resynced", filler("main", testbed.Limits{testbed.Memory: 1024})))
		started(t, "resynced")
		checkFilled(t, "resynced", gib)
	})
	check()
}

// checkInRequest creates pods, and causes a failure as soon as the runtime calls the agent for each
// pod. The guard refuses each pod, as the pod's Events state, and kubelet creates the container
// again.
func checkInRequest(t *testing.T, r *relay, breaks func(plugin, runtime net.Conn), pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		waitRegistered(t)
		acted := r.on("CreateContainer", pod.Name, breaks)
		create(t, pod)
		if !acted() {
			t.Fatalf("the runtime sent no request for %s", pod.Name)
		}
		eventually.Holds(t, patience, pod.Name+" is refused", func() bool {
			messages, err := bed.Messages(t.Context(), pod.Name)
			return err == nil && strings.Contains(strings.Join(messages, "\n"), theGuard)
		})
	}
}

// checkBeforeStart breaks the connection after a container was created with its limits. At that
// time, the agent has not seen that a link in the image hides our files.
func checkBeforeStart(t *testing.T, r *relay) {
	t.Helper()
	pod := withVolume("unchecked", testbed.Container("hidden", testbed.Limits{testbed.Memory: 1024}, "fill"),
		corev1.VolumeMount{MountPath: testbed.Detours + "/run"})
	waitRegistered(t)
	acted := r.on("StartContainer", "hidden", cut)
	create(t, pod)
	if !acted() {
		t.Fatal("the runtime sent no request for the start")
	}
	ended, err := bed.WaitPod(t.Context(), pod.Name, "refused", patience, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	})
	if err != nil {
		t.Fatal(err)
	}
	state := ended.Status.ContainerStatuses[0].State.Terminated
	if state == nil || !strings.Contains(state.Message, theGuard) {
		t.Errorf("the guard did not refuse the start: %s", testbed.Describe(ended))
	}
}

// waitRegistered waits until the agent has registered with the runtime.
func waitRegistered(t *testing.T) {
	t.Helper()
	waitSaid(t, "nri_vgpu_registered 1", patience)
}
