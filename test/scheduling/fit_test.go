// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestFit lets kube-scheduler bind pods in the mode fit. Four pods take more than half a GPU each, and
// a fifth pod waits. When a pod ends, the waiting pod fits only the ended pod's GPU, although each node
// has enough memory in sum. The chart switches the mode while the pods run. Meanwhile, no Node offers
// less than its pods use.
func TestFit(t *testing.T) {
	const memory = 9 << 10
	at := map[string]string{} // the node and GPU of each running pod
	next := 0
	start := func() string {
		next++
		name := fmt.Sprintf("fit-%d", next)
		create(t, podOf(name, memory))
		return name
	}
	for range 2 * gpus {
		name := start()
		at[name] = heldBy(t, name, memory)
	}
	switchMode(t, memory, useFit)
	t.Cleanup(func() {
		switchMode(t, memory, useScheduler)
		if err := beds[0].DeleteAll(context.Background(), slices.Collect(maps.Keys(at))...); err != nil {
			t.Error(err)
		}
	})
	eventually.Holds(t, patience, "the Nodes have labels for the mode fit", func() bool {
		list, err := beds[0].Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: request.FitLabel})
		return err == nil && len(list.Items) == len(beds)
	})
	eventually.Holds(t, patience, "the API server applies the policy", func() bool {
		pod, err := beds[0].Client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), podOf("try", memory),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && pod.Spec.Affinity != nil
	})
	eventually.Holds(t, patience, "the scheduler's Lease is gone", func() bool {
		_, err := beds[0].Client.CoordinationV1().Leases(testbed.Namespace).Get(t.Context(), scheduler, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	waiting := start()
	for range *rounds {
		names := slices.Sorted(maps.Keys(at))
		ended := names[rand.IntN(len(names))]
		remove(t, ended)
		got := heldBy(t, waiting, memory)
		if got != at[ended] {
			t.Errorf("%s runs on %s, and only %s had room", waiting, got, at[ended])
		}
		at[waiting] = got
		delete(at, ended)
		waiting = start()
	}
	if pod, err := beds[0].WaitPod(t.Context(), waiting, "unschedulable", patience, unschedulable); err != nil {
		t.Errorf("%v: %v", err, pod.Status.Conditions)
	}
	remove(t, waiting)
	checkNoRefusals(t)
}

// heldBy waits until a pod holds memory of a GPU, and returns the node and the GPU by the oracle.
func heldBy(t *testing.T, name string, memory uint64) (at string) {
	t.Helper()
	pod, err := beds[0].WaitRunning(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(beds, func(b *testbed.Bed) bool { return b.Cluster.NodeName == pod.Spec.NodeName })
	eventually.Holds(t, patience, "pod "+name+" holds its memory", func() bool {
		held, err := beds[i].Held(pod)
		for uuid, bytes := range held {
			at = pod.Spec.NodeName + "/" + uuid
			return err == nil && len(held) == 1 && bytes == memory*mib
		}
		return false
	})
	return at
}

// switchMode changes the mode of scheduling, and checks that no Node offers less than its pods use. Each
// GPU has a pod with some MiB.
func switchMode(t *testing.T, memory int64, change func(context.Context, *testbed.Bed) error) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // switchMode also cleans up
	list, err := beds[0].Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := beds[0].Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watch.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			if offered := node.Status.Allocatable[testbed.Memory]; offered.Value() < gpus*memory {
				t.Errorf("node %s offers %d MiB, and its pods use %d", node.Name, offered.Value(), gpus*memory)
			}
		}
	}()
	if err := change(ctx, beds[0]); err != nil {
		t.Error(err)
	}
	watch.Stop()
	<-done
}
