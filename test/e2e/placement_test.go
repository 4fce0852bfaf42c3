// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestPolicyOfAPod checks that a pod's policy of placement overrides the node's policy, according
// to the oracle, and that the agent refuses an unknown policy.
func TestPolicyOfAPod(t *testing.T) {
	with := func(name, policy string) *corev1.Pod {
		pod := testbed.Pod(name, filler("main", testbed.Limits{testbed.Memory: 1024}))
		pod.Annotations = map[string]string{choice.Policy: policy}
		return pod
	}
	create(t, testbed.Pod("usual", filler("main", testbed.Limits{testbed.Memory: 2048})))
	first := checkFilled(t, "usual", 2*gib)
	create(t, with("spread", config.PlaceSpread))
	if uuid := checkFilled(t, "spread", gib); uuid == first {
		t.Errorf("the pod with policy spread is on %s, beside the first pod", uuid)
	}
	create(t, with("packed", config.PlaceBinpack))
	if uuid := checkFilled(t, "packed", gib); uuid != first {
		t.Errorf("the pod with policy binpack is on %s, want the fullest GPU, %s", uuid, first)
	}
	unknown := with("unknown", "pack")
	create(t, unknown)
	nudge := bed.Nudger(unknown.Name)
	if _, err := bed.WaitPod(t.Context(), unknown.Name, "refused", patience, func(pod *corev1.Pod) bool {
		nudge(t.Context())
		return refusedBy("allowed: binpack, spread")(pod)
	}); err != nil {
		t.Error(err)
	}
}
