package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// lasting makes a pod's containers start again whenever they end.
func lasting(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	return pod
}

// greedy is a pod that asks for no GPU, runs on, and whose image asks for all.
func greedy(name string) *corev1.Pod {
	container := testbed.Container("main", nil, "sh", "-c", "info; exec linger")
	container.Image = testbed.CUDAImage
	return lasting(testbed.Pod(name, container))
}

func checkGreedy(t *testing.T, name string) {
	t.Helper()
	running(t, name)
	var info testbed.Info
	if err := bed.WaitResult(t.Context(), name, "main", patience, &info); err != nil {
		t.Fatal(err)
	}
	if len(info.CUDA.Devices) != 0 {
		t.Errorf("%s asks for no GPU and sees %d", name, len(info.CUDA.Devices))
	}
}

// reboot does to the node what losing its power does: every container ends,
// /run is lost, and the runtime and kubelet start anew.
func reboot(t *testing.T) {
	t.Helper()
	for _, component := range []string{cluster.Kubelet, cluster.Containerd} {
		if err := bed.Cluster.Stop(t.Context(), component); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "every container has ended", func() bool {
		pids := nodeProcesses(t, func(cgroup, command string) bool {
			return strings.Contains(cgroup, "kubepods") || strings.Contains(command, "containerd-shim")
		})
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may be ending already
		}
		return len(pids) == 0
	})
	emptyDir(t, "run/nri-vgpu")
	for _, component := range []string{cluster.Containerd, cluster.Kubelet} {
		if err := bed.Cluster.Start(t.Context(), component); err != nil {
			t.Fatal(err)
		}
	}
}

// emptyDir removes what is in a directory of the node.
func emptyDir(t *testing.T, dir string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(bed.Cluster.Root(), dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

// kubelet starts the pods of before as soon as the runtime is there; the agent
// is one of them, and comes when it comes. New pods have come meanwhile.
func TestClosedAtBootWithTheAgentLate(t *testing.T) {
	guarded(t)
	create(t, lasting(testbed.Pod("booted", filler("main", testbed.Limits{testbed.Memory: 2048}))))
	create(t, greedy("booted-greedy"))
	checkFilled(t, "booted", 2*gib)
	checkGreedy(t, "booted-greedy")
	back := away(t)
	// At once: half a minute later the node has no capacity for new pods.
	k := newKinds("absent")
	checkBroken(t, k)
	reboot(t)
	for _, name := range []string{"booted", "booted-greedy"} {
		if bytes := held(t, waitRefused(t, name)); len(bytes) != 0 {
			t.Errorf("%s holds %v before the agent is there", name, bytes)
		}
	}

	back()
	waitCapacity(t, patience)
	for _, name := range []string{"booted", "booted-greedy"} {
		started(t, name)
		if _, err := bed.WaitPod(t.Context(), name, "started again", patience, func(pod *corev1.Pod) bool {
			status := pod.Status.ContainerStatuses
			return len(status) == 1 && status[0].RestartCount > 0 && status[0].State.Running != nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	checkFilled(t, "booted", 2*gib)
	checkGreedy(t, "booted-greedy")
	checkMended(t, k)
}

func TestClosedWhenContainerdRestartsWithManyPods(t *testing.T) {
	const count = 20
	names := make([]string, count)
	before := map[string]corev1.ContainerStatus{}
	for i := range names {
		names[i] = "many-" + string(rune('a'+i))
		create(t, testbed.Pod(names[i], filler("main", testbed.Limits{testbed.Memory: 1024})))
	}
	for _, name := range names {
		checkFilled(t, name, gib)
		before[name] = running(t, name).Status.ContainerStatuses[0]
	}
	if err := bed.Cluster.Restart(t.Context(), cluster.Containerd); err != nil {
		t.Fatal(err)
	}
	waitRegistered(t)
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		checkFilled(t, name, gib)
		after := running(t, name).Status.ContainerStatuses[0]
		if after.ContainerID != before[name].ContainerID || after.RestartCount != before[name].RestartCount {
			t.Errorf("%s was restarted", name)
		}
	}
	waitSaid(t, "nri_vgpu_unadjusted_containers 0", patience)
}
