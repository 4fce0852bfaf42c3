// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// inject makes a simulated GPU fail, until the test ends.
func inject(t *testing.T, args ...string) {
	t.Helper()
	if err := bed.Inject(args...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Inject("clear"); err != nil {
			t.Error(err)
		}
	})
}

func index(t *testing.T, uuid string) string {
	t.Helper()
	return []string{"0", "1"}[slices.Index(bed.UUIDs, uuid)]
}

// waitEvent waits for an Event about an object whose message contains a text.
func waitEvent(t *testing.T, namespace, selector, reason, phrase string, within time.Duration) {
	t.Helper()
	var seen []string
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		list, err := bed.Client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: selector + ",reason=" + reason})
		if err != nil {
			t.Fatal(err)
		}
		seen = nil
		for i := range list.Items {
			if strings.Contains(list.Items[i].Message, phrase) {
				return
			}
			seen = append(seen, list.Items[i].Message)
		}
	}
	t.Errorf("within %v no Event %s of %s contains %q, but %q", within, reason, selector, phrase, seen)
}

func waitPodEvent(t *testing.T, pod, reason, phrase string, within time.Duration) {
	t.Helper()
	selector := "involvedObject.kind=Pod,involvedObject.name=" + pod
	// Another test may have had a pod of the same name, and its Events remain.
	if now, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), pod, metav1.GetOptions{}); err == nil {
		selector += ",involvedObject.uid=" + string(now.UID)
	}
	waitEvent(t, metav1.NamespaceDefault, selector, reason, phrase, within)
}

func waitNodeEvent(t *testing.T, reason, phrase string) {
	t.Helper()
	waitEvent(t, metav1.NamespaceDefault, "involvedObject.kind=Node,involvedObject.name="+bed.Cluster.NodeName, reason, phrase, patience)
}

// waitCondition waits until the Node's condition has this status and a message with this text.
func waitCondition(t *testing.T, status corev1.ConditionStatus, phrase string) {
	t.Helper()
	if err := bed.WaitNode(t.Context(), patience, func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == "VGPUReady" && c.Status == status && strings.Contains(c.Message, phrase)
		})
	}); err != nil {
		t.Errorf("the condition VGPUReady is not %s with %q: %v", status, phrase, err)
	}
}

// TestGPULostAndBack checks a GPU that is lost and returns. Containers on the other GPU continue,
// and new pods use the other GPU. The capacity falls and rises, and a kubelet that restarts
// meanwhile fails no pod.
func TestGPULostAndBack(t *testing.T) {
	check := untouched(t)
	steady, _ := onlyGPU(t, held(t, running(t, "steady")))
	// This pod fits only on the GPU that will be lost.
	create(t, testbed.Pod("unlucky", filler("main", testbed.Limits{testbed.Memory: 14336})))
	lost := checkFilled(t, "unlucky", 14*gib)
	if lost == steady {
		t.Fatalf("both pods are on %s", lost)
	}
	before := running(t, "unlucky")

	inject(t, "--gpu", index(t, lost), "lost")
	// The memory of the lost GPU's pods stays, and the free memory of the healthy GPU stays.
	if err := bed.WaitCapacity(t.Context(), testbed.Memory, 4096+14336+12288, patience); err != nil {
		t.Fatal(err)
	}
	waitNodeEvent(t, "GPUUnhealthy", lost)
	waitCondition(t, corev1.ConditionFalse, lost)
	check()

	if err := bed.Cluster.Restart(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	check()
	after := running(t, "unlucky")
	if was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; is.ContainerID != was.ContainerID || after.UID != before.UID {
		t.Errorf("the container on the lost GPU was replaced: %s is now %s", was.ContainerID, is.ContainerID)
	}

	if err := bed.Delete(t.Context(), "unlucky"); err != nil {
		t.Fatal(err)
	}
	if err := bed.WaitCapacity(t.Context(), testbed.Memory, gpuMemory/mib, patience); err != nil {
		t.Fatal(err)
	}
	create(t, testbed.Pod("new", filler("main", testbed.Limits{testbed.Memory: 4096})))
	if uuid := checkFilled(t, "new", 4*gib); uuid != steady {
		t.Errorf("the new pod is on %s, which is lost", uuid)
	}
	create(t, testbed.Pod("waits", filler("main", testbed.Limits{testbed.Memory: 16384})))
	if _, err := bed.WaitPod(t.Context(), "waits", "unschedulable", patience, unschedulable); err != nil {
		t.Fatal(err)
	}

	if err := bed.Inject("clear"); err != nil {
		t.Fatal(err)
	}
	waitCapacity(t, patience)
	waitNodeEvent(t, "GPURecovered", lost)
	waitCondition(t, corev1.ConditionTrue, "")
	againIfRejected(t, testbed.Pod("waits", filler("main", testbed.Limits{testbed.Memory: 16384})))
	if uuid := checkFilled(t, "waits", 16*gib); uuid != lost {
		t.Errorf("the pod that needs a whole GPU is on %s, want %s, which is back", uuid, lost)
	}
	check()
}

// againIfRejected creates a pod again, as a controller would, if kubelet has rejected the pod.
// Kubelet may see a Node's new capacity later than the scheduler.
func againIfRejected(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for {
		seen, err := bed.WaitPod(t.Context(), pod.Name, "started or rejected", patience, func(pod *corev1.Pod) bool {
			return pod.Status.Phase != corev1.PodPending
		})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(seen.Status.Reason, "OutOf") {
			return
		}
		if err := bed.Delete(t.Context(), pod.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := bed.Create(t.Context(), pod.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestXIDs checks that an application's XID has no effect. A critical XID keeps new containers off
// the GPU until the driver stops requesting a recovery.
func TestXIDs(t *testing.T) {
	inject(t, "--gpu", "0", "xid", "31")
	inject(t, "--gpu", "0", "recovery", "1")
	inject(t, "--gpu", "0", "xid", "95")
	waitNodeEvent(t, "GPUUnhealthy", "XID 95")
	if err := bed.WaitCapacity(t.Context(), testbed.Memory, gpuMemory/mib, patience); err != nil {
		t.Fatal(err)
	}
	create(t, testbed.Pod("aside", filler("main", testbed.Limits{testbed.Memory: 1024})))
	if uuid := checkFilled(t, "aside", gib); uuid != bed.UUIDs[1] {
		t.Errorf("the pod is on %s, which needs a reset", uuid)
	}
	inject(t, "--gpu", "0", "recovery", "0") // the GPU was reset
	waitCapacity(t, patience)
	inject(t, "--gpu", "0", "xid", "31")
	time.Sleep(6 * time.Second) // the agent's period between two checks
	waitCapacity(t, time.Second)
}

// TestHangingDriver checks a driver that hangs for longer than the agent waits. Containers continue
// to run, and GPUs are healthy again when the driver answers.
func TestHangingDriver(t *testing.T) {
	check := untouched(t)
	inject(t, "nvml-hang", "20")
	waitNodeEvent(t, "GPUUnhealthy", "does not answer")
	check()
	// The patcher may withdraw the capacity only later.
	waitMetric(t, patience, gpus, "nri_vgpu_gpu_healthy", nil)
	waitCapacity(t, patience)
	check()
}

// occupy takes memory of each GPU such that a pod fits the sum of the remaining memory, but no
// single GPU.
func occupy(t *testing.T) {
	t.Helper()
	for _, name := range []string{"first", "second"} {
		create(t, testbed.Pod(name, filler("main", testbed.Limits{testbed.Memory: 10240})))
		checkFilled(t, name, 10*gib)
	}
}

// TestPodThatFitsNoGPUIsEvicted checks that the agent evicts a pod that the scheduler placed by the
// sum and that fits no GPU.
func TestPodThatFitsNoGPUIsEvicted(t *testing.T) {
	occupy(t)
	set, err := bed.CreateReplicaSet(t.Context(), "moves", filler("main", testbed.Limits{testbed.Memory: 8192}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.DeleteReplicaSet(context.Background(), set); err != nil {
			t.Error(err)
		}
	})
	first, err := bed.WaitReplica(t.Context(), set, patience, func(*corev1.Pod) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	// This pod has no controller.
	create(t, testbed.Pod("stays", filler("main", testbed.Limits{testbed.Memory: 7168})))
	free := "GPU 0 (" + bed.UUIDs[0] + "): 6144 MiB"
	waitPodEvent(t, first.Name, "VGPURefused", free, patience)
	// Kubelet retries several times first.
	nudges := []func(context.Context){bed.Nudger(first.Name), bed.Nudger("stays")}
	nudge := func() {
		for _, one := range nudges {
			one(t.Context())
		}
	}
	next, err := bed.WaitReplica(t.Context(), set, 2*patience, func(pod *corev1.Pod) bool {
		nudge()
		return pod.UID != first.UID
	})
	if err != nil {
		t.Fatal(err)
	}
	waitPodEvent(t, first.Name, "VGPUEvicted", free, patience)
	eventually.Holds(t, patience, "the pod without a controller stays", func() bool {
		nudge()
		messages, err := bed.Messages(t.Context(), "stays")
		return err == nil && strings.Contains(strings.Join(messages, "\n"), "no controller")
	})
	waitPodEvent(t, "stays", "VGPUNotEvicted", "no controller", patience)
	// The cluster has no other node. The pod starts when this node has room.
	if err := bed.DeleteAll(t.Context(), "stays", "first"); err != nil {
		t.Fatal(err)
	}
	started(t, next.Name)
	checkFilled(t, next.Name, 8*gib)
}
