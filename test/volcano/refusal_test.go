// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	protocol "github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestAForgedAssignmentIsRefused checks that the agent refuses an assignment that contradicts the
// spec, and informs the scheduler. Only an administrator could write this assignment.
func TestAForgedAssignmentIsRefused(t *testing.T) {
	bed := beds[1]
	ids := protocol.Assignment{{{UUID: bed.UUIDs[0], Type: "NVIDIA", MiB: 16000}}}.String()
	pod := testbed.Pod("forged", testbed.Container("main", ask(0, 100, 0, 0), "linger"))
	pod.Spec.NodeName = bed.Cluster.NodeName
	pod.Annotations = map[string]string{
		protocol.Node: bed.Cluster.NodeName, protocol.IDs: ids, protocol.ToAllocate: ids,
		protocol.Phase: protocol.Allocating, protocol.BindTime: "1700000000", protocol.Time: "1700000000",
	}
	create(t, []*corev1.Pod{pod})
	t.Cleanup(func() { remove(t, []*corev1.Pod{pod}) })
	failed, err := bed.WaitPod(t.Context(), pod.Name, "failed", patience, func(pod *corev1.Pod) bool {
		return pod.Annotations[protocol.Phase] == protocol.Failed && pod.Annotations[protocol.Time] == protocol.Answered
	})
	if err != nil {
		explain(t, pod.Name)
		t.Fatal(err)
	}
	if failed.Annotations[protocol.ToAllocate] != ids {
		t.Errorf("still to be allocated is %q", failed.Annotations[protocol.ToAllocate])
	}
	messages, err := bed.Messages(t.Context(), pod.Name)
	if err != nil || !strings.Contains(strings.Join(messages, "\n"), "requests 100 MiB") {
		t.Errorf("the pod's Events do not contain the cause: %v, %q", err, messages)
	}
}

// TestARestartedContainerKeepsItsGPU checks that a container that ends and restarts keeps its
// assignment.
func TestARestartedContainerKeepsItsGPU(t *testing.T) {
	configure(t, false)
	pod := podFor("restarts", filler(ask(0, 3000, 0, 0)))
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	create(t, []*corev1.Pod{pod})
	t.Cleanup(func() { remove(t, []*corev1.Pod{pod}) })
	running, err := beds[0].WaitRunning(t.Context(), pod.Name, patience)
	if err != nil {
		t.Fatal(err)
	}
	before := given(t, running, "main")
	checkHeld(t, running, map[string]uint64{before.Devices[0].UUID: 3000})
	if err := bedOf(t, running).KillContainer(running); err != nil {
		t.Fatal(err)
	}
	again, err := beds[0].WaitPod(t.Context(), pod.Name, "restarted", patience, func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount == 1 &&
			pod.Status.ContainerStatuses[0].State.Running != nil
	})
	if err != nil {
		t.Fatal(err)
	}
	after := given(t, again, "main")
	if len(before.Devices) != 1 || len(after.Devices) != 1 || before.Devices[0] != after.Devices[0] {
		t.Errorf("the container had %+v, and has %+v", before.Devices, after.Devices)
	}
}

// TestPodsOfOthersAreCounted checks that the scheduler also counts the allocations of pods in other
// dialects.
func TestPodsOfOthersAreCounted(t *testing.T) {
	configure(t, false)
	marker := podFor("marker", testbed.Container("main", ask(1, 100, 0, 0), "linger"))
	marker.Spec.NodeSelector = map[string]string{corev1.LabelHostname: beds[1].Cluster.NodeName}
	ours := testbed.Pod("ours", testbed.Container("main", testbed.Limits{testbed.Memory: 15000}, "linger"))
	ours.Spec.NodeSelector = marker.Spec.NodeSelector
	pods := []*corev1.Pod{marker, ours}
	t.Cleanup(func() { remove(t, pods) })
	create(t, pods)
	told, err := beds[1].WaitPod(t.Context(), "ours", "announced", patience, func(pod *corev1.Pod) bool { return pod.Annotations[protocol.IDs] != "" })
	if err != nil {
		t.Fatal(err)
	}
	full := given(t, told, "main").Devices[0].UUID
	// Neither of these two pods fits on that pod's GPU, so Volcano must send both pods to the other
	// GPU.
	var others []*corev1.Pod
	for _, name := range []string{"beside-1", "beside-2"} {
		pod := podFor(name, testbed.Container("main", ask(1, 2000, 0, 0), "linger"))
		pod.Spec.NodeSelector = marker.Spec.NodeSelector
		others = append(others, pod)
	}
	t.Cleanup(func() { remove(t, others) })
	create(t, others)
	for _, pod := range others {
		running, err := beds[1].WaitRunning(t.Context(), pod.Name, patience)
		if err != nil {
			explain(t, pod.Name)
			t.Fatal(err)
		}
		if d := given(t, running, "main").Devices[0]; d.UUID == full || !protocol.Assigned(running) {
			t.Errorf("%s is on %s, beside the pod that fills it; annotations %v", pod.Name, d.UUID, running.Annotations)
		}
	}
}

// TestEncodings checks that nri-vgpu and Volcano read and write our registrations and Volcano's
// assignments in the same way.
func TestEncodings(t *testing.T) {
	node := nodeOf(t, beds[0])
	for _, tt := range []struct {
		name   string
		limits []testbed.Limits
		want   func(uuids []string) string
	}{
		{"one", []testbed.Limits{ask(0, 1000, 0, 0)}, func(u []string) string { return u[1] + ",NVIDIA,1000,0:" }},
		{"two GPUs", []testbed.Limits{ask(2, 1000, 0, 30)}, func(u []string) string {
			return u[1] + ",NVIDIA,1000,30:" + u[0] + ",NVIDIA,1000,30:"
		}},
		{"the second of three containers requests no GPU", []testbed.Limits{ask(0, 1, 0, 0), nil, ask(0, 2, 0, 5)}, func(u []string) string {
			return u[1] + ",NVIDIA,1,0:;" + u[1] + ",NVIDIA,2,5:"
		}},
		{"all of a GPU", []testbed.Limits{ask(1, 0, 0, 0)}, func(u []string) string { return u[1] + ",NVIDIA,16384,0:" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := testbed.Pod("pod")
			pod.Namespace, pod.Spec.NodeName = metav1.NamespaceDefault, node.Name
			for i, limits := range tt.limits {
				pod.Spec.Containers = append(pod.Spec.Containers, testbed.Container(string(rune('a'+i)), limits))
			}
			v := viewOf(t, components.VolcanoLedger, node, nil, pod)
			if !v.Known || v.Refused != "" || len(v.GPUs) != gpus {
				t.Fatalf("Volcano reads our registration as %+v", v)
			}
			for _, g := range v.GPUs {
				if g.Number != 10 || g.Memory != gpuMiB || !g.Healthy || !strings.HasPrefix(g.Type, "NVIDIA-") {
					t.Errorf("Volcano reads %+v", g)
				}
			}
			text := v.Annotations[protocol.IDs]
			if text != tt.want(beds[0].UUIDs) {
				t.Errorf("Volcano writes %s, want %s", text, tt.want(beds[0].UUIDs))
			}
			assignment, err := protocol.Parse(text)
			if err != nil || assignment.String() != text || len(assignment) != len(protocol.Asking(pod, defaults)) {
				t.Errorf("we read %v of it: %v", assignment, err)
			}
			pod.Annotations = v.Annotations
			if !protocol.Assigned(pod) {
				t.Errorf("the assignment is not recognised: %v", v.Annotations)
			}
			// Volcano also counts the assignments that the agent writes.
			counted := viewOf(t, components.VolcanoLedger, node, []corev1.Pod{*pod}, nil)
			var mem uint
			for _, g := range counted.GPUs {
				mem += g.UsedMem
			}
			var want uint
			for _, devices := range assignment {
				for _, d := range devices {
					want += uint(d.MiB)
				}
			}
			if mem != want {
				t.Errorf("Volcano counts %d MiB of %s, want %d", mem, assignment, want)
			}
		})
	}
}
