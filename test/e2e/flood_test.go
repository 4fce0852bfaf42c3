package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	// floodPods are as many pods as a kubelet on two cores runs and has refused at
	// a time without being late itself.
	floodPods = 24
	// floodDelay is how much later than alone a pod may start beside them.
	floodDelay = 5 * time.Second
)

// floodPod is a pod with many containers that ask for little. Every third has init
// containers, which quotas count as one, and fits; others have as many sidecars as the
// node has no slots for, or more containers than may ask.
func floodPod(i int) *corev1.Pod {
	containers := 64
	var restart *corev1.ContainerRestartPolicy
	switch i % 3 {
	case 1:
		restart = new(corev1.ContainerRestartPolicyAlways)
	case 2:
		containers = 1000
	}
	pod := testbed.Pod(fmt.Sprint("flood-", i), testbed.Container("main", nil, "sleep", "600"))
	for k := range containers {
		c := testbed.Container(fmt.Sprint("init-", k), testbed.Limits{testbed.Memory: 1}, "sleep", "0")
		c.RestartPolicy = restart
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	return pod
}

// startTime is how long a pod takes from its creation until it runs.
func startTime(t *testing.T, name string) time.Duration {
	t.Helper()
	begin := time.Now()
	create(t, testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: 256}, "linger")))
	running(t, name)
	return time.Since(begin)
}

func refusals(t *testing.T, reason string) float64 {
	t.Helper()
	count, err := bed.Metric(t.Context(), "nri_vgpu_refusals_total", map[string]string{"reason": reason})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// TestAFloodOfAskingPodsDelaysNobody has pods with as many containers as may ask, and more,
// created and refused, and starts other pods beside them.
func TestAFloodOfAskingPodsDelaysNobody(t *testing.T) {
	var alone time.Duration
	for i := range 3 {
		alone = max(alone, startTime(t, fmt.Sprint("alone-", i)))
	}
	request, placement := refusals(t, "request"), refusals(t, "placement")
	for i := range floodPods {
		create(t, floodPod(i))
	}
	// It is on when each kind was seen.
	_, err := bed.WaitPod(t.Context(), "flood-0", "some of its init containers to have run", patience, func(pod *corev1.Pod) bool {
		return len(pod.Status.InitContainerStatuses) > 0 && pod.Status.InitContainerStatuses[0].State.Terminated != nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); refusals(t, "request") == request || refusals(t, "placement") == placement; {
		if time.Now().After(end) {
			t.Fatal("no pod of the flood is refused: the test tests nothing")
		}
		time.Sleep(200 * time.Millisecond)
	}
	for i := range 3 {
		took := startTime(t, fmt.Sprint("beside-", i))
		t.Logf("beside the flood a pod started after %v, alone after %v at most", took, alone)
		if took > alone+floodDelay {
			t.Errorf("beside the flood a pod started after %v, alone after %v at most", took, alone)
		}
	}
}
