// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
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
	eventually.Holds(t, patience, "the Node has labels about single GPUs", func() bool { return len(fitLabels(t)) > 1 })
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

// fitLabels returns the Node's labels about single GPUs.
func fitLabels(t *testing.T) map[string]string {
	t.Helper()
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	labels := maps.Clone(node.Labels)
	maps.DeleteFunc(labels, func(name, _ string) bool { return !strings.HasPrefix(name, request.FitLabel) })
	return labels
}

// waiting returns a pod that holds nothing of what it asks for.
func waiting(name string, mib int64) *corev1.Pod {
	return testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: mib}, "sleep", "3600"))
}

// TestFit checks that in the mode fit a pod waits until a single GPU has room, and starts as soon as
// there is one. No pod is refused. The mode can change while pods run.
func TestFit(t *testing.T) {
	back := fitMode(t)
	for _, name := range []string{"first", "second"} {
		create(t, waiting(name, 10<<10))
		running(t, name)
	}
	// Together the GPUs have 12 GiB free, and none has 8.
	create(t, waiting("large", 8<<10))
	if _, err := bed.WaitPod(t.Context(), "large", "unschedulable", patience, unschedulable); err != nil {
		t.Fatal(err)
	}
	create(t, waiting("small", 6<<10))
	running(t, "small")
	if err := bed.Delete(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	running(t, "large")
	t.Logf("the waiting pod runs %v after the end of another", time.Since(begin).Round(time.Millisecond))
	for _, name := range []string{"first", "large", "small"} {
		pod := running(t, name)
		if turn := pod.Spec.Containers[0].Resources.Requests[request.FitTurn]; turn.Value() != 1 {
			t.Errorf("%s takes %d turns", name, turn.Value())
		}
	}

	// Kubelet admits all pods again when it restarts.
	if err := bed.Cluster.Restart(t.Context(), cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	for _, name := range []string{"first", "large", "small"} {
		pod := running(t, name)
		if pod.Status.ContainerStatuses[0].RestartCount > 0 {
			t.Errorf("%s has restarted", name)
		}
	}

	back()
	eventually.Holds(t, patience, "the labels are gone", func() bool { return len(fitLabels(t)) == 0 })
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if turns := node.Status.Allocatable[request.FitTurn]; turns.Value() != 3 {
		t.Errorf("the Node offers %d turns, and its pods have 3", turns.Value())
	}
	create(t, waiting("later", 2<<10))
	running(t, "later")
	list, err := bed.Client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if e := &list.Items[i]; e.Reason == events.VGPURefused.Name && strings.Contains("first second large small later", e.InvolvedObject.Name) {
			t.Errorf("%s was refused: %s", e.InvolvedObject.Name, e.Message)
		}
	}
}
