// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/heartbeat"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	fit "github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
	"github.com/nri-vgpu/nri-vgpu/test/turns"
)

// fitMode sets the mode fit for agent and patcher, with the policy, until the test ends. back sets
// the mode before.
func fitMode(t *testing.T) (back func()) {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	remove, err := testbed.ApplyFitPolicy(t.Context(), bed.Client, source, os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	before, err := bed.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	changed := true
	back = func() {
		if changed {
			changed = false
			if err := remove(); err != nil {
				t.Error(err)
			}
			if _, err := bed.SetConfig(context.Background(), before, patience); err != nil {
				t.Error(err)
			}
			replacePatcher(t)
		}
	}
	t.Cleanup(back)
	if _, err := bed.SetConfig(t.Context(), replaced(t, before, `mode = "sums"`, `mode = "fit"`), patience); err != nil {
		t.Fatal(err)
	}
	replacePatcher(t)
	eventually.Holds(t, patience, "the Node has labels for the mode fit", func() bool { return len(fitLabels(t)) > 1 })
	eventually.Holds(t, patience, "the API server applies the policy", func() bool {
		pod, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), waiting("try", 1),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && pod.Spec.Affinity != nil
	})
	return back
}

// replacePatcher deletes the patcher's pod and waits for another.
func replacePatcher(t *testing.T) {
	t.Helper()
	pods := bed.Client.CoreV1().Pods(testbed.Namespace)
	patcher := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=extended-resource-patcher"}
	list, err := pods.List(context.Background(), patcher)
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d patchers, want one: %v", len(list.Items), err)
	}
	before := list.Items[0]
	if err := pods.Delete(context.Background(), before.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, patience, "another patcher runs", func() bool {
		list, err := pods.List(context.Background(), patcher)
		return err == nil && len(list.Items) == 1 && list.Items[0].UID != before.UID && list.Items[0].Status.Phase == corev1.PodRunning
	})
}

// fitLabels returns the Node's labels for the mode fit.
func fitLabels(t *testing.T) map[string]string {
	t.Helper()
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	labels := maps.Clone(node.Labels)
	maps.DeleteFunc(labels, func(name, _ string) bool { return !strings.HasPrefix(name, fit.FitLabel) })
	return labels
}

// waiting returns a pod that uses nothing of its part of a GPU.
func waiting(name string, mib int64) *corev1.Pod {
	return testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: mib}, "sleep", "3600"))
}

// TestFit checks that in the mode fit a pod waits until a single GPU has room, and then starts. The
// node refuses no pod. A restarted kubelet or agent keeps the pods, although no GPU has room for
// another pod of their shapes. Nothing writes to the Node of an idle node. The mode can change while
// pods run.
func TestFit(t *testing.T) {
	back := fitMode(t)
	publishes(t)
	for _, name := range []string{"first", "second"} {
		create(t, waiting(name, 10<<10))
		running(t, name)
	}
	// The GPUs have 12 GiB free in total, and no GPU has 8 GiB free.
	create(t, waiting("large", 8<<10))
	unscheduled(t, "large")
	create(t, waiting("small", 6<<10))
	running(t, "small")
	if err := bed.Delete(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	running(t, "large")
	t.Logf("the waiting pod runs %v after the end of another", time.Since(begin).Round(time.Millisecond))
	create(t, waiting("another", 8<<10))
	names := []string{"first", "large", "small", "another"}
	for _, name := range names {
		if turn := running(t, name).Spec.Containers[0].Resources.Requests[fit.FitTurn]; turn.Value() != 1 {
			t.Errorf("%s takes %d turns", name, turn.Value())
		}
	}
	// Kubelet admits all pods again when it restarts.
	if err := bed.Cluster.Restart(t.Context(), cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	stay(t, names)
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	if err := bed.Cluster.Restart(t.Context(), cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	stay(t, names)
	create(t, waiting("more", 8<<10)) // has the shape of pods of the node
	unscheduled(t, "more")
	unwritten(t)

	least := leastUse(t)
	back()
	eventually.Holds(t, patience, "the labels are gone", func() bool { return len(fitLabels(t)) == 0 })
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if turns := node.Status.Allocatable[fit.FitTurn]; turns.Value() != 4 {
		t.Errorf("the Node offers %d turns, and its pods have 4", turns.Value())
	}
	least()
	prints(t, []string{"why", "-n", "default", "more"}, "The pod was created with scheduling.mode=fit", "kubectl delete pod -n default more")
	if err := bed.Delete(t.Context(), "more"); err != nil {
		t.Fatal(err)
	}
	stay(t, names)
	if err := bed.Delete(t.Context(), "another"); err != nil {
		t.Fatal(err)
	}
	create(t, waiting("later", 2<<10))
	running(t, "later")
	list, err := bed.Client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		if e.Reason == events.VGPURefused.Name && slices.Contains([]string{"first", "second", "large", "small", "another", "more", "later"}, e.InvolvedObject.Name) {
			t.Errorf("%s was refused: %s", e.InvolvedObject.Name, e.Message)
		}
	}
}

// publishes measures how long the Node's turns and labels lag behind the pods. publishes logs the
// delays, and fails if the Node waits for the agent's next round.
func publishes(t *testing.T) {
	t.Helper()
	const samples = 20
	recorder, err := turns.Record(t.Context(), bed.Client)
	if err != nil {
		t.Fatal(err)
	}
	for i := range samples {
		name := fmt.Sprint("sample-", i)
		create(t, waiting(name, 1<<10))
		if err := recorder.Await(t.Context(), name, turns.Binding, patience); err != nil {
			t.Fatal(err)
		}
		running(t, name)
		if err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := recorder.Await(t.Context(), name, turns.End, patience); err != nil {
			t.Fatal(err)
		}
	}
	for _, change := range []turns.Change{turns.Binding, turns.End} {
		all := recorder.Delays(change)
		median := all[len(all)/2].Took
		t.Logf("from a pod's %s to the update of the Node: %v at the median, %v at most", change, median.Round(time.Millisecond), all[len(all)-1].Took.Round(time.Millisecond))
		if median > heartbeat.Interval/2 {
			t.Errorf("the Node's update waits for the agent's round after a pod's %s: %v", change, all)
		}
	}
}

// unscheduled waits until the scheduler has found no node for a pod.
func unscheduled(t *testing.T, name string) {
	t.Helper()
	if _, err := bed.WaitPod(t.Context(), name, "unschedulable", patience, unschedulable); err != nil {
		t.Fatal(err)
	}
}

// stay checks that pods run on for ten seconds. A restarted kubelet admits its pods within this time.
func stay(t *testing.T, names []string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		for _, name := range names {
			pod, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				continue // the API server may be busy
			}
			if pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount > 0 {
				t.Fatalf("%s does not run on: %s", name, testbed.Describe(pod))
			}
		}
	}
}

// unwritten checks that agent and patcher write neither the Node nor the agent's pod while no pod changes.
func unwritten(t *testing.T) {
	t.Helper()
	written := func() (times string) {
		node, err := bed.Node(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pods, err := bed.Client.CoreV1().Pods(testbed.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=nri-vgpu"})
		if err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d agents: %v", len(pods.Items), err)
		}
		for _, f := range slices.Concat(node.ManagedFields, pods.Items[0].ManagedFields) {
			if !strings.HasPrefix(f.Manager, "kube") {
				times += fmt.Sprintln(f.Manager, f.Time)
			}
		}
		return times
	}
	before := ""
	eventually.Holds(t, patience, "the labels do not change for five seconds", func() bool {
		before = written()
		time.Sleep(5 * time.Second)
		return before == written()
	})
	time.Sleep(15 * time.Second)
	if diff := cmp.Diff(before, written()); diff != "" || !strings.Contains(before, "extended-resource-patcher") {
		t.Errorf("the idle node was written (-before +after):\n%s\n%s", before, diff)
	}
}

// leastUse watches the Node until end, which checks that the Node never offered less than the pods
// used at the start.
func leastUse(t *testing.T) (end func()) {
	t.Helper()
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := bed.Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + node.Name, ResourceVersion: node.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen []*corev1.Node
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range nodes.ResultChan() {
			if n, ok := event.Object.(*corev1.Node); ok {
				seen = append(seen, n)
			}
		}
	}()
	return func() {
		nodes.Stop()
		<-done
		if len(seen) == 0 {
			t.Error("the watch saw no change of the Node")
		}
		for _, n := range seen {
			for name, used := range map[corev1.ResourceName]int64{fit.FitTurn: 4, testbed.Memory: 32 << 10} {
				if offered := n.Status.Allocatable[name]; offered.Value() < used {
					t.Errorf("the Node offers %d of %s, and its pods use %d", offered.Value(), name, used)
				}
			}
		}
	}
}
