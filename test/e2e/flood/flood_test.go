// SPDX-License-Identifier: Apache-2.0

// Package flood measures the start times of pods on a real node full of pods with 64 containers
// that request GPUs. The package takes some minutes and two processors. "make e2e-flood" runs the
// package, and "make test" does not.
package flood

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus      = 7
	gpuMemory = 16 << 30
	mib       = 1 << 20
	// slots is the number of slots of a GPU. All GPUs together have fewer slots than a pod of the
	// crowd has containers, and enough slots for all pods that take one slot.
	slots = 9

	// apart is the number of normal pods that start one after another, and together is the number
	// of normal pods that start at once. All normal pods stay until the end.
	apart, together = 10, 10
	// apartFor bounds the time of the pods that start one after another, on a slow machine.
	apartFor = 40 * time.Second
	patience = 2 * time.Minute

	// later is the delay of a normal pod's start that other pods' requests may cause.
	later = 5 * time.Second
)

// config is the agent's configuration.
var config = fmt.Sprintf("[node]\nslots_per_gpu = %d\n", slots)

func TestMain(m *testing.M) {
	cluster.Supervise()
	os.Exit(m.Run())
}

// suite is the node with its measurements.
type suite struct {
	*testing.T
	bed *testbed.Bed
	// crowded is the number of pods of a crowd for which the node has room.
	crowded int
}

// TestNormalPodsStartBesideAFlood measures normal pods, each with a part of a GPU. The pods run
// alone, beside a crowd that requests none of our resources, and beside a crowd that requests our
// resources. The second crowd may cost kubelet, containerd and the machine no more than the first
// crowd.
func TestNormalPodsStartBesideAFlood(t *testing.T) {
	s := newSuite(t)
	s.advertise(other, gpus*gpuMemory/mib)
	alone := s.measure("alone", nil)

	refuse := s.refuseMarked()
	control := s.measure("control", func(i int) *corev1.Pod { return harmless(crowdPod(i)) })
	refuse.Stop()

	hostile := s.measure("hostile", crowdPod)

	t.Logf("beside a crowd with requests the median normal pod starts %.1f s later than alone, and %.1f s later than beside a crowd without requests",
		(hostile.median() - alone.median()).Seconds(), (hostile.median() - control.median()).Seconds())
	s.judge(control, hostile)
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	source, err := testbed.SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	bed, err := testbed.Up(t.Context(), testbed.Options{
		Name: "flood", Source: source, GPUs: gpus, GPUMemory: gpuMemory,
		Log: func(format string, args ...any) { fmt.Printf("flood: "+format+"\n", args...) },
	})
	if bed != nil {
		t.Cleanup(func() {
			if err := bed.Down(t.Failed()); err != nil {
				t.Errorf("take the cluster down: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bed.SetConfig(t.Context(), config, patience); err != nil {
		t.Fatal(err)
	}
	if err := bed.WaitCapacity(t.Context(), testbed.Number, gpus*slots, patience); err != nil {
		t.Fatal(err)
	}
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pods, err := bed.Client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	room := int(node.Status.Allocatable.Pods().Value()) - len(pods.Items) - apart - together
	return &suite{T: t, bed: bed, crowded: room}
}

// advertise makes the node offer a resource that only the scheduler and kubelet know.
func (s *suite) advertise(resource string, amount int64) {
	s.Helper()
	patch := fmt.Sprintf(`{"status":{"capacity":{%[1]q:"%[2]d"},"allocatable":{%[1]q:"%[2]d"}}}`, resource, amount)
	_, err := s.bed.Client.CoreV1().Nodes().Patch(s.Context(), s.bed.Cluster.NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		s.Fatal(err)
	}
	if err := s.bed.WaitCapacity(s.Context(), resource, amount, patience); err != nil {
		s.Fatal(err)
	}
}

// measure starts a crowd, unless crowd is nil, and normal pods, and removes all pods.
func (s *suite) measure(name string, crowd func(i int) *corev1.Pod) result {
	s.Helper()
	r := result{name: name}
	if crowd != nil {
		s.gather(crowd)
		r.crowd = s.crowded
	}
	before, began := s.read(), time.Now()
	for i := range apart {
		if i > 0 && time.Since(began) > apartFor {
			break
		}
		r.apart = append(r.apart, s.start(fmt.Sprintf("apart-%d", i))...)
	}
	at := make([]string, together)
	for i := range at {
		at[i] = fmt.Sprintf("together-%d", i)
	}
	r.together = s.start(at...)
	r.took, r.spent = time.Since(began), s.read().since(before)
	if crowd != nil {
		r.granted, r.refused = s.became()
	}
	began = time.Now()
	s.clear()
	fmt.Printf("flood: %v\nflood: the pods were gone after %v\n", r, time.Since(began).Round(time.Second))
	return r
}

// start creates normal pods at once, and waits until all run. The time of a pod that does not run
// in time counts as patience.
func (s *suite) start(names ...string) []start {
	s.Helper()
	created := map[string]time.Time{}
	for _, name := range names {
		pod := testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: 256}, "linger"))
		pod.Labels = map[string]string{normalLabel: ""}
		created[name] = time.Now()
		if _, err := s.bed.Create(s.Context(), pod); err != nil {
			s.Fatal(err)
		}
	}
	var starts []start
	var last *corev1.Pod
	err := wait.PollUntilContextTimeout(s.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := s.pods(ctx, normalLabel)
		if err != nil {
			return false, err
		}
		for i := range list {
			began, waits := created[list[i].Name]
			if !waits {
				continue
			}
			last = &list[i]
			if last.Status.Phase == corev1.PodRunning {
				starts = append(starts, newStart(last, time.Since(began)))
				delete(created, last.Name)
			}
		}
		return len(created) == 0, nil
	})
	if err != nil {
		messages, _ := s.bed.Messages(s.Context(), last.Name)
		s.Logf("%d normal pods do not run after %v: %v: %s\n%q", len(created), patience, err, testbed.Describe(last), messages)
	}
	for range created {
		starts = append(starts, start{took: patience})
	}
	return starts
}

func (s *suite) pods(ctx context.Context, label string) ([]corev1.Pod, error) {
	list, err := s.bed.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// clear removes all pods of the measurement.
func (s *suite) clear() {
	s.Helper()
	pods := s.bed.Client.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.DeleteCollection(s.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		s.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(s.Context(), 500*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := s.pods(ctx, "")
		return len(list) == 0, err
	})
	if err != nil {
		s.Fatalf("remove the pods: %v", err)
	}
}

// gather creates the crowd and waits until kubelet has admitted all pods of the crowd.
func (s *suite) gather(crowd func(i int) *corev1.Pod) {
	s.Helper()
	for i := range s.crowded {
		if _, err := s.bed.Create(s.Context(), crowd(i)); err != nil {
			s.Fatal(err)
		}
	}
	admitted := 0
	err := wait.PollUntilContextTimeout(s.Context(), 500*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		list, err := s.pods(ctx, crowdLabel)
		admitted = 0
		for i := range list {
			if list[i].Status.StartTime != nil {
				admitted++
			}
		}
		return admitted == s.crowded, err
	})
	if err != nil {
		s.Fatalf("kubelet has admitted %d pods of %d: %v", admitted, s.crowded, err)
	}
}

// became returns the numbers of started and of refused containers of the crowd.
func (s *suite) became() (granted, refused int) {
	s.Helper()
	list, err := s.pods(s.Context(), crowdLabel)
	if err != nil {
		s.Fatal(err)
	}
	for i := range list {
		for _, c := range slices.Concat(list[i].Status.InitContainerStatuses, list[i].Status.ContainerStatuses) {
			switch {
			case c.State.Running != nil || c.State.Terminated != nil:
				granted++
			case c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerError":
				refused++
			}
		}
	}
	return granted, refused
}
