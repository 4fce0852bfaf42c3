// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	outage = 60 * time.Second
	// wellAgain is the time after the API server's return within which the agent must know the
	// node's pods again.
	wellAgain = 5 * time.Second
)

// waitHolds waits until the pod physically holds this much of one GPU.
func waitHolds(t *testing.T, pod *corev1.Pod, bytes uint64) {
	t.Helper()
	eventually.Holds(t, patience, pod.Name+" holds its limit", func() bool {
		return slices.Equal(slices.Collect(maps.Values(held(t, pod))), []uint64{bytes})
	})
}

// restart kills the pod's program, and waits until the program runs again as before.
func restart(t *testing.T, pod *corev1.Pod, bytes uint64) {
	t.Helper()
	if err := bed.KillContainer(pod); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, patience, pod.Name+" has ended", func() bool { return len(held(t, pod)) == 0 })
	waitHolds(t, pod, bytes)
}

// mainPid returns the first process of a pod with a single container.
func mainPid(t *testing.T, pod *corev1.Pod, command string) int {
	t.Helper()
	pids := nodeProcesses(t, func(cgroup, line string) bool {
		return strings.Contains(strings.ReplaceAll(cgroup, "_", "-"), "pod"+string(pod.UID)) && strings.HasPrefix(line, command)
	})
	if len(pids) != 1 {
		t.Fatalf("%s runs %q %d times", pod.Name, command, len(pids))
	}
	return pids[0]
}

func TestClosedWhileTheAPIServerIsAway(t *testing.T) {
	check := untouched(t)
	create(t, lasting(testbed.Pod("lasting", filler("main", testbed.Limits{testbed.Memory: 2048}))))
	create(t, greedy("lasting-greedy"))
	checkFilled(t, "lasting", 2*gib)
	checkGreedy(t, "lasting-greedy")
	steady, pod, unknown := running(t, "steady"), running(t, "lasting"), running(t, "lasting-greedy")

	began := time.Now()
	if err := bed.Cluster.Stop(t.Context(), cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	up := false
	t.Cleanup(func() {
		if !up {
			// The test's own context has already ended.
			if err := bed.Cluster.Start(context.Background(), cluster.APIServer); err != nil {
				t.Error(err)
			}
		}
	})
	restart(t, pod, 2*gib)
	// A new agent knows the previous agent's allocations from files, but does not know other pods.
	signal(t, agentPid(t), syscall.SIGKILL)
	waitSaid(t, "nri_vgpu_registered 1", patience)
	restart(t, pod, 2*gib)
	signal(t, mainPid(t, unknown, "linger"), syscall.SIGKILL)
	eventually.Holds(t, patience, "a pod whose spec is unknown is refused", func() bool {
		refused, err := bed.Metric(t.Context(), "nri_vgpu_refusals_total", map[string]string{"reason": "pod-unknown"})
		return err == nil && refused > 0
	})
	waitHolds(t, steady, 4*gib)
	if rest := outage - time.Since(began); rest > 0 {
		time.Sleep(rest)
	}
	waitHolds(t, steady, 4*gib)
	waitHolds(t, pod, 2*gib)

	if err := bed.Cluster.Start(t.Context(), cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	up = true
	waitSaid(t, "nri_vgpu_pods_synced 1", wellAgain)
	// Running components of Kubernetes would retry up to a minute later, or not at all. Restarted
	// components retry immediately.
	for _, component := range []string{cluster.Scheduler, cluster.ControllerManager, cluster.Kubelet} {
		if err := bed.Cluster.Restart(t.Context(), component); err != nil {
			t.Fatal(err)
		}
	}
	create(t, testbed.Pod("after-outage", filler("main", testbed.Limits{testbed.Memory: 1024})))
	checkFilled(t, "after-outage", gib)
	checkFilled(t, "lasting", 2*gib)
	started(t, "lasting-greedy")
	checkGreedy(t, "lasting-greedy")
	check()
}
