package e2e

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// Container runtimes fail open: a plugin that is absent, hangs or dies is passed
// over, and the container is created as its image wants it. The tests here
// break the agent in each of these ways, on a node whose default runtime gives
// all GPUs to an image that asks for all, and look who got what. Where there is
// no agent at all, see TestClosedAtBootWithTheAgentLate; where it
// answers with an error, see TestMountsOverOursAreRefused; where its answer to
// StartContainer is one, TestMountsOverOursByDetoursAreRefused; where the
// runtime itself requires the plugin, TestRequiredPlugin. Containers of runtimes
// that heed a failure policy are pkg/hook's TestNoAnswerIsARefusal.

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v: %s", patience, what)
}

// The three kinds of pods that are created while the agent is broken.
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

// waitRefused waits until the guard has refused a pod's container, which kubelet
// tries to start again and again.
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

// checkBroken creates pods while the agent is broken: whoever may want a GPU is
// refused, all others start and see none.
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

// checkMended checks that everybody got what it asked for, once the agent is
// back.
func checkMended(t *testing.T, k kinds) {
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
		t.Errorf("%s asks for no GPU and sees %d", pod.Name, len(info.CUDA.Devices))
	}
}

// The runtime waits for two seconds, drops the agent and goes on.
func TestClosedWhileTheAgentHangs(t *testing.T) {
	guarded(t)
	check := untouched(t)
	// Its image names no GPU: that its pod asks for one the guard has from the
	// list alone.
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
	checkMended(t, k)
	started(t, "again")
	if after := checkFilled(t, "again", 2*gib); after != uuid {
		t.Errorf("the container was on %s and is on %s after its restart", uuid, after)
	}
	check()
}

// With the agent away there is only the guard to ask, and the runtime drops it
// when it doesn't answer: its stand-in is asked of the same container.
func TestClosedWhileTheGuardHangs(t *testing.T) {
	guarded(t)
	check := untouched(t)
	back := away(t)
	guard := guardPid(t)
	signal(t, guard, syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(guard, syscall.SIGCONT) }) // unless the runtime has ended it
	k := newKinds("unguarded")
	checkBroken(t, k)
	check()
	back()
	checkMended(t, k)
	check()
}

// What breaks in the middle of a request is done at that very moment, from
// between the runtime and the agent. To the runtime an agent that dies is a
// connection that breaks; one is really killed, and no more, as kubelet starts
// it again each time later.
func TestClosedWhenItBreaksInARequest(t *testing.T) {
	guarded(t)
	check := untouched(t)
	r := newRelay(t)
	t.Run("the connection breaks", func(t *testing.T) {
		k := newKinds("cut")
		checkInRequest(t, r, cut, k.asks, k.greedy)
		checkMended(t, k)
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
		checkMended(t, k)
	})
	t.Run("before the container starts", func(t *testing.T) { checkBeforeStart(t, r) })
	t.Run("the agent is too slow to take over what runs", func(t *testing.T) {
		waitRegistered(t)
		acted := r.on("Synchronize", "", func(net.Conn, net.Conn) { time.Sleep(3 * time.Second) })
		r.cut()
		if !acted() {
			t.Fatal("the runtime did not tell what runs")
		}
		create(t, testbed.Pod("resynced", filler("main", testbed.Limits{testbed.Memory: 1024})))
		started(t, "resynced")
		checkFilled(t, "resynced", gib)
	})
	check()
}

// checkInRequest creates pods, and breaks something as soon as the runtime asks
// the agent about each. Each is refused, as its Events say, and created anew.
func checkInRequest(t *testing.T, r *relay, breaks func(plugin, runtime net.Conn), pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		waitRegistered(t)
		acted := r.on("CreateContainer", pod.Name, breaks)
		create(t, pod)
		if !acted() {
			t.Fatalf("the runtime did not ask about %s", pod.Name)
		}
		eventually(t, pod.Name+" is refused", func() bool {
			messages, err := bed.Messages(t.Context(), pod.Name)
			return err == nil && strings.Contains(strings.Join(messages, "\n"), theGuard)
		})
	}
}

// checkBeforeStart breaks the connection when a container was created with its
// limits, and the agent has yet to see that a link in the image hides them.
func checkBeforeStart(t *testing.T, r *relay) {
	t.Helper()
	pod := withVolume("unchecked", testbed.Container("hidden", testbed.Limits{testbed.Memory: 1024}, "fill"),
		corev1.VolumeMount{MountPath: testbed.Detours + "/run"})
	waitRegistered(t)
	acted := r.on("StartContainer", "hidden", cut)
	create(t, pod)
	if !acted() {
		t.Fatal("the runtime did not ask about the start")
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

// waitRegistered waits until the runtime has the agent.
func waitRegistered(t *testing.T) {
	t.Helper()
	waitSaid(t, "nri_vgpu_registered 1", patience)
}
