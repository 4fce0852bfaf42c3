// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	protocol "github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/volcano"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestNextGeneration runs the scheduler of 1.15.1, which sends no handshakes. This scheduler
// considers a node alive while the node offers the resources.
func TestNextGeneration(t *testing.T) {
	installed.Next = true
	if err := volcano.Configure(t.Context(), beds[0].Cluster, installed); err != nil {
		t.Fatal(err)
	}
	waitAssigning(t)
	pods := mixed("next")[:8]
	t.Cleanup(func() { remove(t, pods) })
	create(t, pods[:1])
	waitBound(t, pods[:1])
	create(t, pods[1:])
	for _, pod := range pods {
		running, err := beds[0].WaitRunning(t.Context(), pod.Name, patience)
		if err != nil {
			explain(t, pod.Name)
			t.Fatal(err)
		}
		if !protocol.Assigned(running) {
			t.Errorf("Volcano has not chosen the GPUs of %s: %v", pod.Name, running.Annotations)
		}
	}
	for _, pod := range pods {
		checkPod(t, pod.Name)
	}
	checkLedgers(t)
}

// waitAssigning waits until the scheduler chooses the GPUs of pods on all nodes.
func waitAssigning(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, bed := range beds {
		for assigned := false; !assigned; {
			if time.Now().After(deadline) {
				t.Fatalf("Volcano's scheduler does not choose GPUs of %s", bed.Cluster.NodeName)
			}
			probe := podFor("probe-"+bed.Cluster.NodeName, testbed.Container("main", ask(1, 100, 0, 0), "linger"))
			probe.Spec.NodeSelector = map[string]string{corev1.LabelHostname: bed.Cluster.NodeName}
			create(t, []*corev1.Pod{probe})
			running, err := bed.WaitRunning(t.Context(), probe.Name, patience)
			remove(t, []*corev1.Pod{probe})
			if err != nil {
				t.Fatal(err)
			}
			assigned = protocol.Assigned(running)
		}
	}
}

// TestANodeWithoutItsAgentIsNotKnown checks that a node whose agent is down has no GPUs for either
// generation of the scheduler, until the agent is back.
func TestANodeWithoutItsAgentIsNotKnown(t *testing.T) {
	known := func(want bool) {
		t.Helper()
		for _, bed := range beds {
			for _, version := range []string{components.VolcanoLedger, components.VolcanoLedgerNext} {
				if v := viewOf(t, version, nodeOf(t, bed), nil, nil); v.Known != want || want && len(v.GPUs) != gpus {
					t.Errorf("%s: node %s is known: %v with %d GPUs, want %v", version, bed.Cluster.NodeName, v.Known, len(v.GPUs), want)
				}
			}
		}
	}
	known(true)
	if err := beds[0].StopAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	started := false
	start := func() {
		if err := beds[0].StartAgent(t.Context(), patience); err != nil {
			t.Error(err)
		}
		started = true
	}
	defer func() {
		if !started {
			start()
		}
	}()
	for _, bed := range beds {
		if err := bed.WaitNode(t.Context(), patience, func(node *corev1.Node) bool {
			_, registered := node.Annotations[protocol.Register]
			return !registered
		}); err != nil {
			t.Fatal(err)
		}
	}
	known(false)
	start()
	for _, bed := range beds {
		if err := bed.WaitNode(t.Context(), patience, func(node *corev1.Node) bool {
			return node.Annotations[protocol.Register] != ""
		}); err != nil {
			t.Fatal(err)
		}
	}
	known(true)
}
