// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// lasting makes a pod's ended containers restart.
func lasting(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	return pod
}

// greedy returns a pod that requests no GPU, keeps running, and has an image that requests all
// GPUs.
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
		t.Errorf("%s requests no GPU and sees %d", name, len(info.CUDA.Devices))
	}
}

// reboot simulates a power loss of the node: every container ends, /run is lost, and the runtime
// and kubelet restart.
func reboot(t *testing.T) {
	t.Helper()
	for _, component := range []string{cluster.Kubelet, cluster.Containerd} {
		if err := bed.Cluster.Stop(t.Context(), component); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Holds(t, patience, "every container has ended", func() bool {
		pids := nodeProcesses(t, func(cgroup, command string) bool {
			return strings.Contains(cgroup, "kubepods") || strings.Contains(command, "containerd-shim")
		})
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the process may be ending already
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

// emptyDir removes the content of a directory of the node.
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

// TestClosedAtBootWithTheAgentLate boots a node whose agent starts late. Kubelet starts the earlier
// pods as soon as the runtime is up, the agent may start last, and new pods are bound meanwhile.
func TestClosedAtBootWithTheAgentLate(t *testing.T) {
	guarded(t)
	create(t, lasting(testbed.Pod("booted", filler("main", testbed.Limits{testbed.Memory: 2048}))))
	create(t, greedy("booted-greedy"))
	checkFilled(t, "booted", 2*gib)
	checkGreedy(t, "booted-greedy")
	back := away(t)
	// The test must create the pods immediately, because half a minute later the node has no
	// capacity for new pods.
	k := newKinds("absent")
	checkBroken(t, k)
	reboot(t)
	for _, name := range []string{"booted", "booted-greedy"} {
		if bytes := held(t, waitRefused(t, name)); len(bytes) != 0 {
			t.Errorf("%s holds %v before the agent runs", name, bytes)
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
	checkRecovered(t, k)
}

// TestAForgedMirrorStopsNoStaticPod boots a node without the agent while a tenant's pod claims to
// be the mirror of a static pod and requests GPUs. The guard must not treat the static pod, which
// may be the API server, as the tenant's pod.
func TestAForgedMirrorStopsNoStaticPod(t *testing.T) {
	guarded(t)
	system := lasting(testbed.Pod("system", testbed.Container("main", nil, "linger")))
	system.TypeMeta, system.Namespace = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, metav1.NamespaceDefault
	mirror, _ := staticPod(t, system)
	hash := mirror.Annotations[corev1.MirrorPodAnnotationKey]
	forged := testbed.Pod("forged", filler("main", testbed.Limits{testbed.Memory: 1024}))
	forged.Annotations, forged.OwnerReferences = mirror.Annotations, mirror.OwnerReferences
	forged.Spec.NodeName, forged.Finalizers = mirror.Spec.NodeName, []string{"example.com/stays"}
	_, err := as(t, "tenant", "system:masters").Create(t.Context(), forged, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a tenant may forge a mirror: %v", err)
	}
	// The change has the effect of a cluster without the policy.
	if _, err := as(t, "tenant", "system:masters", "system:nodes").Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pods := as(t, "tenant", "system:masters")
		_, err := pods.Patch(context.Background(), "forged", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err == nil {
			err = pods.Delete(context.Background(), "forged", metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	eventually.Holds(t, patience, "the agent has seen the forged mirror", func() bool {
		list, err := os.ReadFile(filepath.Join(bed.Cluster.Root(), paths.AskingPods("/var/lib/nri-vgpu")))
		return err == nil && strings.Contains(string(list), hash)
	})
	back := away(t)
	pids := nodeProcesses(t, func(cgroup, command string) bool {
		return strings.Contains(cgroup, hash) && strings.Contains(command, "linger")
	})
	if len(pids) != 1 {
		t.Fatalf("the static pod has the processes %v", pids)
	}
	signal(t, pids[0], syscall.SIGKILL)
	if _, err := bed.WaitPod(t.Context(), mirror.Name, "started again", patience/4, func(pod *corev1.Pod) bool {
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].RestartCount > 0 && status[0].State.Running != nil
	}); err != nil {
		t.Error(err)
	}
	// The forged mirror must also not stop the agent, in any namespace.
	if info := seen(t, agentLike("the-next-agent", false)); len(info.CUDA.Devices) != gpus {
		t.Errorf("the next agent sees %d GPUs, want %d", len(info.CUDA.Devices), gpus)
	}
	back()
}

// as returns a client for the pods of the default namespace that impersonates a user of these
// groups.
func as(t *testing.T, user string, groups ...string) typedcorev1.PodInterface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", bed.Cluster.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.CoreV1().Pods(metav1.NamespaceDefault)
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
