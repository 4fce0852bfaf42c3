// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestTheSchedulerCountsResizedPods checks that the scheduler binds no pod to a GPU on which another
// pod has grown beyond its spec. No node may refuse a pod.
func TestTheSchedulerCountsResizedPods(t *testing.T) {
	idle := func(name string, memory int64) *corev1.Pod {
		return testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: memory}, "sleep", "3600"))
	}
	var names, used []string
	place := func(name string, memory int64) string {
		create(t, idle(name, memory))
		names = append(names, name)
		node, uuid := running(t, name)
		return node + "/" + uuid
	}
	for i := range 2 * gpus {
		used = append(used, place(fmt.Sprintf("resized-%d", i), 9<<10))
	}
	out, err := beds[0].KubectlVgpu(t.Context(), "resize", "resized-0", "--memory", "15Gi")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i := range 2*gpus - 1 {
		at := place(fmt.Sprintf("beside-%d", i), 6<<10)
		if at == used[0] || !slices.Contains(used, at) {
			t.Errorf("a pod of 6 GiB is on %s, where 1 GiB is left; the pods of 9 GiB are on %v", at, used)
		}
	}
	create(t, idle("waits", 6<<10))
	names = append(names, "waits")
	if _, err := beds[0].WaitPod(t.Context(), "waits", "unschedulable", patience, unschedulable); err != nil {
		t.Fatal(err)
	}
	if out, err = beds[0].KubectlVgpu(t.Context(), "resize", "resized-0", "--reset"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if node, uuid := running(t, "waits"); node+"/"+uuid != used[0] {
		t.Errorf("the waiting pod is on %s/%s, and %s got room", node, uuid, used[0])
	}
	checkNoRefusals(t)
	remove(t, names...)
}

func unschedulable(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}
