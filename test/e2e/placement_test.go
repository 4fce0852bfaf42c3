// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestGPUsThatAPodChooses checks the annotations by which a pod chooses GPUs by UUID and model, according
// to the oracle.
func TestGPUsThatAPodChooses(t *testing.T) {
	with := func(name, annotation, value string) *corev1.Pod {
		pod := testbed.Pod(name, filler("main", testbed.Limits{testbed.Memory: 1024}))
		pod.Annotations = map[string]string{annotation: value}
		create(t, pod)
		return pod
	}
	for name, tt := range map[string]struct{ annotation, value, want string }{
		"use-first":    {choice.UseUUID, bed.UUIDs[0], bed.UUIDs[0]},
		"use-second":   {choice.UseUUID, "GPU-none," + bed.UUIDs[1], bed.UUIDs[1]},
		"nouse-first":  {choice.NoUseUUID, bed.UUIDs[0], bed.UUIDs[1]},
		"nouse-second": {choice.NoUseUUID, bed.UUIDs[1], bed.UUIDs[0]},
		"use-model":    {choice.UseType, "A100,h200", ""},
	} {
		with(name, tt.annotation, tt.value)
		if uuid := checkFilled(t, name, gib); tt.want != "" && uuid != tt.want {
			t.Errorf("%s: the pod is on %s, want %s", name, uuid, tt.want)
		}
	}
	none := with("nouse-model", choice.NoUseType, "H200")
	nudge := bed.Nudger(none.Name)
	if _, err := bed.WaitPod(t.Context(), none.Name, "refused", patience, func(pod *corev1.Pod) bool {
		nudge(t.Context())
		return refusedBy("allow no GPU of the node")(pod)
	}); err != nil {
		t.Error(err)
	}
}

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
