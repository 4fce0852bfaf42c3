// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// podOf returns a pod that fills MiB of one GPU. The pod names no scheduler.
func podOf(name string, memory int64) *corev1.Pod {
	return testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: memory}, "fill", "--hold", "3600"))
}

func create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := beds[0].Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, names ...string) {
	t.Helper()
	if err := beds[0].DeleteAll(t.Context(), names...); err != nil {
		t.Fatal(err)
	}
}

// running waits until a pod runs, and returns the node and the GPU that the scheduler assigned.
func running(t *testing.T, name string) (node, uuid string) {
	t.Helper()
	pod, err := beds[0].WaitRunning(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.SchedulerName != scheduler {
		t.Errorf("pod %s has the scheduler %q", name, pod.Spec.SchedulerName)
	}
	return pod.Spec.NodeName, assignedTo(t, pod)
}

// assignedTo returns the GPU assigned to a pod.
func assignedTo(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	var assigned map[string][]string
	if err := json.Unmarshal([]byte(pod.Annotations[assign.Annotation]), &assigned); err != nil || len(assigned["main"]) != 1 {
		t.Fatalf("pod %s has the assignment %q", pod.Name, pod.Annotations[assign.Annotation])
	}
	return assigned["main"][0]
}

// holds waits until a pod holds its memory on the assigned GPU, according to the oracle.
func holds(t *testing.T, name string, memory uint64) {
	t.Helper()
	node, uuid := running(t, name)
	i := slices.IndexFunc(beds, func(b *testbed.Bed) bool { return b.Cluster.NodeName == node })
	pod, err := beds[i].WaitRunning(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	var held map[string]uint64
	eventually.Holds(t, patience, "pod "+name+" holds its memory", func() bool {
		held, err = beds[i].Held(pod)
		return err == nil && len(held) == 1 && held[uuid] == memory*mib
	})
	if t.Failed() {
		t.Errorf("pod %s holds %v, and was assigned %s of %s", name, held, uuid, node)
	}
}

// checkNoRefusals checks that no node refused a pod, and that kubelet rejected no pod.
func checkNoRefusals(t *testing.T) {
	t.Helper()
	list, err := beds[0].Client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		if e.Reason == events.VGPURefused.Name || e.Reason == events.VGPUEvicted.Name || strings.HasPrefix(e.Reason, "OutOf") || strings.HasPrefix(e.Reason, "UnexpectedAdmission") {
			t.Errorf("%s %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}

// TestPodsLandWhereTheyFit keeps four pods running that each take more than half a GPU, and one
// waiting pod. When a pod ends, the waiting pod fits only the ended pod's GPU, although each node
// has enough memory in sum. Meanwhile the test kills the scheduler's leader.
func TestPodsLandWhereTheyFit(t *testing.T) {
	const memory = 9 << 10
	at := map[string]string{} // the GPU of each running pod
	seen := map[string]bool{}
	next := 0
	start := func() string {
		next++
		name := fmt.Sprintf("churn-%d", next)
		create(t, podOf(name, memory))
		return name
	}
	for range 2 * gpus {
		name := start()
		node, uuid := running(t, name)
		at[name] = node + "/" + uuid
		seen[at[name]] = true
	}
	if len(seen) != 2*gpus {
		t.Fatalf("four pods of more than half a GPU are on %v", at)
	}
	waiting := start()
	for round := range *rounds {
		if round == *rounds/2 {
			killLeader(t)
		}
		names := slices.Sorted(func(yield func(string) bool) {
			for name := range at {
				if !yield(name) {
					return
				}
			}
		})
		ended := names[rand.IntN(len(names))]
		remove(t, ended)
		node, uuid := running(t, waiting)
		if got := node + "/" + uuid; got != at[ended] {
			t.Errorf("%s runs on %s, and only %s had room", waiting, got, at[ended])
		}
		holds(t, waiting, memory)
		at[waiting] = at[ended]
		delete(at, ended)
		waiting = start()
	}
	pod, err := beds[0].WaitPod(t.Context(), waiting, "refused by the scheduler", patience, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && strings.Contains(c.Message, "no GPU of the node has room for the pod")
		})
	})
	if err != nil {
		t.Errorf("%v: %v", err, pod.Status.Conditions)
	}
	explainsWhy(t, waiting)
	checkNoRefusals(t)
	for name := range at {
		remove(t, name)
	}
	remove(t, waiting)
}

// explainsWhy checks that kubectl's plugin names each GPU and the resources that the pod lacks on
// the GPU.
func explainsWhy(t *testing.T, name string) {
	t.Helper()
	out, err := beds[0].KubectlVgpu(t.Context(), "why", name)
	if err != nil || strings.Count(out, "of 9216 MiB are free") != 2*gpus || !strings.Contains(out, "No GPU of 2 nodes has room") {
		t.Errorf("kubectl vgpu why: %v", err)
	}
	t.Logf("kubectl vgpu why %s\n%s", name, out)
}

// killLeader deletes the pod of the scheduler's leader without a grace period.
func killLeader(t *testing.T) {
	t.Helper()
	lease, err := beds[0].Client.CoordinationV1().Leases(testbed.Namespace).Get(t.Context(), scheduler, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	leader, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	now := int64(0)
	if err := beds[0].Client.CoreV1().Pods(testbed.Namespace).Delete(t.Context(), leader, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatalf("kill the leader: %v", err)
	}
}

// TestPreemptionTakesOneGPU fills all GPUs with pods of low priority. A pod of high priority must get
// the GPU of the pod with the lowest priority, and no other pod may end.
func TestPreemptionTakesOneGPU(t *testing.T) {
	for class, value := range map[string]int32{"lowest": 1, "low": 2, "high": 3} {
		_, err := beds[0].Client.SchedulingV1().PriorityClasses().Create(t.Context(),
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Value: value}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	var names []string
	for i := range 2 * gpus {
		class := "low"
		if i == 2 {
			class = "lowest"
		}
		pod := podOf(fmt.Sprintf("%s-%d", class, i), 9<<10)
		pod.Spec.PriorityClassName = class
		create(t, pod)
		names = append(names, pod.Name)
		running(t, pod.Name)
	}
	node, uuid := running(t, names[2])
	high := podOf("high", 12<<10)
	high.Spec.PriorityClassName = "high"
	create(t, high)
	if gotNode, got := running(t, "high"); gotNode != node || got != uuid {
		t.Errorf("the pod of high priority got %s of %s, and the lowest pod had %s of %s", got, gotNode, uuid, node)
	}
	holds(t, "high", 12<<10)
	for i, name := range names {
		pod, err := beds[0].Client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
		if gone := apierrors.IsNotFound(err) || err == nil && (pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning); gone != (i == 2) {
			t.Errorf("%s is gone: %t", name, gone)
		}
	}
	checkNoRefusals(t)
	remove(t, append(slices.Delete(names, 2, 3), "high")...)
}

// TestForeignPodsCountWhereTheyAre binds pods without a scheduler, so that the node chooses their
// GPUs. The choice depends on an ended pod, so the scheduler cannot derive the choice from the
// remaining pods. The scheduler must place a pod on the free GPU, and the node must not refuse the
// pod.
func TestForeignPodsCountWhereTheyAre(t *testing.T) {
	foreign := func(name string, memory int64) string {
		pod := podOf(name, memory)
		pod.Spec.NodeName = beds[0].Cluster.NodeName
		create(t, pod)
		bound, err := beds[0].WaitPod(t.Context(), name, "running with its GPU announced", patience, func(pod *corev1.Pod) bool {
			return pod.Status.Phase == corev1.PodRunning && pod.Annotations[assign.Annotation] != ""
		})
		if err != nil {
			t.Fatal(err)
		}
		return assignedTo(t, bound)
	}
	first := foreign("foreign-1", 9<<10)
	second := foreign("foreign-2", 9<<10)
	if first == second {
		t.Fatalf("both pods are on %s", first)
	}
	remove(t, "foreign-1")
	if third := foreign("foreign-3", 4<<10); third != second {
		t.Fatalf("foreign-3 is on %s and foreign-2 on %s: the test needs both on one GPU", third, second)
	}
	free := map[string]bool{}
	for i := range 2*gpus - 1 {
		name := fmt.Sprintf("large-%d", i)
		create(t, podOf(name, 12<<10))
		node, uuid := running(t, name)
		holds(t, name, 12<<10)
		if node == beds[0].Cluster.NodeName {
			free[uuid] = true
		}
	}
	if len(free) != 1 || !free[first] {
		t.Errorf("large pods are on %v of the first node; free was %s alone", free, first)
	}
	checkNoRefusals(t)
	remove(t, "foreign-2", "foreign-3", "large-0", "large-1", "large-2")
}

// TestGroupsStartTogether creates a group of pods that each take more than half a GPU. The group
// has one pod more than the cluster has GPUs. While all pods must start together, the scheduler
// must bind no pod. When one pod fewer suffices, each GPU must get a pod of the group.
func TestGroupsStartTogether(t *testing.T) {
	groups := beds[0].Client.SchedulingV1beta1().PodGroups(metav1.NamespaceDefault)
	group, err := groups.Create(t.Context(), &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "gang"},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 2*gpus + 1},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range 2*gpus + 1 {
		pod := podOf(fmt.Sprintf("gang-%d", i), 9<<10)
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group.Name}
		create(t, pod)
		names = append(names, pod.Name)
	}
	for _, name := range names {
		pod, err := beds[0].WaitPod(t.Context(), name, "refused by the scheduler", patience, func(pod *corev1.Pod) bool {
			return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && (strings.Contains(c.Message, "minCount") || strings.Contains(c.Message, "no GPU of the node has room"))
			})
		})
		if err != nil || pod.Spec.NodeName != "" {
			t.Errorf("%s is on node %q: %v", name, pod.Spec.NodeName, err)
		}
	}
	fewer := fmt.Appendf(nil, `{"spec":{"schedulingPolicy":{"gang":{"minCount":%d}}}}`, 2*gpus)
	if _, err := groups.Patch(t.Context(), group.Name, types.MergePatchType, fewer, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	bound := func() (all []string) {
		list, err := beds[0].Client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if pod := &list.Items[i]; slices.Contains(names, pod.Name) && pod.Spec.NodeName != "" {
				all = append(all, pod.Name)
			}
		}
		return all
	}
	eventually.Holds(t, patience, "as many members as GPUs are bound", func() bool { return len(bound()) == 2*gpus })
	at := map[string]bool{}
	for _, name := range bound() {
		holds(t, name, 9<<10)
		node, uuid := running(t, name)
		at[node+"/"+uuid] = true
	}
	if len(at) != 2*gpus {
		t.Errorf("the members are on %v", at)
	}
	checkNoRefusals(t)
	remove(t, names...)
	if err := groups.Delete(t.Context(), group.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
