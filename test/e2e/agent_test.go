// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

func TestAgentRestart(t *testing.T) {
	check := untouched(t)
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	check()
	// The new agent must know the allocation of the running pod, because this pod fits only on the
	// rest of the GPU.
	create(t, testbed.Pod("beside", filler("main", testbed.Limits{testbed.Memory: 12288})))
	checkFilled(t, "beside", 12*gib)
	create(t, testbed.Pod("other", filler("main", testbed.Limits{testbed.Memory: 16384})))
	checkFilled(t, "other", 16*gib)
	check()
}

// TestContainersKeepTheirLimitsOverAnAgentRestart checks that the containers of a pod have separate
// limits, which a new agent restores.
func TestContainersKeepTheirLimitsOverAnAgentRestart(t *testing.T) {
	pod := testbed.Pod("each", filler("one", testbed.Limits{testbed.Memory: 2048}), filler("two", testbed.Limits{testbed.Memory: 3072}))
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	create(t, pod)
	check := func(restarts int32) (uuid string) {
		t.Helper()
		again, err := bed.WaitPod(t.Context(), "each", "running", patience, func(pod *corev1.Pod) bool {
			for i := range pod.Status.ContainerStatuses {
				if s := &pod.Status.ContainerStatuses[i]; s.RestartCount != restarts || s.State.Running == nil {
					return false
				}
			}
			return len(pod.Status.ContainerStatuses) == 2
		})
		if err != nil {
			t.Fatal(err)
		}
		one, two := filled(t, "each", "one"), filled(t, "each", "two")
		if one.TotalBytes != 2*gib || two.TotalBytes != 3*gib {
			t.Errorf("after %d restarts the containers saw %d and %d bytes, want %d and %d", restarts, one.TotalBytes, two.TotalBytes, 2*gib, 3*gib)
		}
		uuid, bytes := onlyGPU(t, held(t, again))
		if bytes != 5*gib {
			t.Errorf("after %d restarts the pod holds %d bytes by the oracle, want %d", restarts, bytes, 5*gib)
		}
		return uuid
	}
	before := check(0)
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	if err := bed.KillContainer(running(t, "each")); err != nil {
		t.Fatal(err)
	}
	if after := check(1); after != before {
		t.Errorf("the pod was on %s, and is on %s after its restart", before, after)
	}
}

// withdrawn is the time within which the patcher must remove the capacity of a Node whose agent is
// gone. The patcher considers an agent alive up to 30 s after its last heartbeat, and the machine
// may be busy.
const withdrawn = 60 * time.Second

func TestAgentGone(t *testing.T) {
	check := untouched(t)
	stopped := time.Now()
	if err := bed.StopAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	back := false
	t.Cleanup(func() {
		if !back {
			if err := bed.StartAgent(context.Background(), patience); err != nil {
				t.Error(err)
			}
		}
	})
	if err := bed.WaitNode(t.Context(), withdrawn, func(node *corev1.Node) bool {
		_, capacity := node.Status.Capacity[testbed.Memory]
		_, allocatable := node.Status.Allocatable[testbed.Memory]
		return !capacity && !allocatable
	}); err != nil {
		t.Fatalf("the capacity was not withdrawn: %v", err)
	}
	t.Logf("withdrawn %v after the agent was stopped", time.Since(stopped).Round(time.Second))
	check()

	// A starting kubelet admits its pods again. The kubelet ignores a resource that is absent.
	if err := bed.Cluster.Restart(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	check()

	// The limits hold without the agent, also for new processes.
	create(t, testbed.Pod("later", filler("main", testbed.Limits{testbed.Memory: 1024})))
	if _, err := bed.WaitPod(t.Context(), "later", "unschedulable", patience, unschedulable); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := bed.ExecOutput(t.Context(), "steady", "fill")
	if err == nil || !strings.Contains(stdout, "CUDA_ERROR_OUT_OF_MEMORY") || !strings.Contains(stderr, "nri-vgpu: refused") {
		t.Errorf("a second process in a full container printed %q and %q, want it to be refused: %v", stdout, stderr, err)
	}

	if err := bed.StartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	back = true
	waitCapacity(t, patience)
	checkFilled(t, "later", gib)
	check()
}
