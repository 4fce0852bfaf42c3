// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestPolicyForTolerations applies the policy of docs/how-to/taints.md. The test checks that the policy
// adds the toleration to pods that request GPUs alone, and keeps other tolerations.
func TestPolicyForTolerations(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/taints.md")
	if err != nil {
		t.Fatal(err)
	}
	var policy string
	for block := range strings.SplitSeq(string(page), "```yaml\n") {
		if text, _, _ := strings.Cut(block, "```"); strings.Contains(text, "kind: MutatingAdmissionPolicy") {
			policy = text
		}
	}
	fitPolicy(t) // creates the namespace, and must not interfere
	remove, err := testbed.ApplyPolicies(t.Context(), clientOf(t, plane.admin), policy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	const taint = "nvidia.com/gpu"
	native := podAsking(asks{"cpu": "1"}, asks{"nri-vgpu.io/vgpu-memory": "1"})
	eventually.Holds(t, 30*time.Second, "the API server applies the policy", func() bool { return tolerates(admitted(t, native), taint) })
	initial := podAsking(asks{"cpu": "1"})
	initial.Spec.InitContainers = []corev1.Container{containerAsking("init", asks{"nri-vgpu.io/vgpu-cores": "1"})}
	own := podAsking(asks{"nri-vgpu.io/vgpu-memory": "1"})
	own.Spec.Tolerations = []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}
	for name, tt := range map[string]struct {
		pod *corev1.Pod
		has map[string]bool
	}{
		"an init container":     {initial, map[string]bool{taint: true}},
		"another toleration":    {own, map[string]bool{taint: true, "own": true}},
		"no request":            {podAsking(asks{"cpu": "1"}), map[string]bool{taint: false}},
		"the name of the taint": {podAsking(asks{"nri-vgpu.io/vgpu-memory": "1"}), map[string]bool{"nri-vgpu.io/vgpu-memory": true, "nri-vgpu.io/vgpu-cores": false}},
		"another resource":      {podAsking(asks{"nri-vgpu.io/vgpu-memory-percentage": "1"}), map[string]bool{"nri-vgpu.io/vgpu-memory": false}},
	} {
		t.Run(name, func(t *testing.T) {
			got := admitted(t, tt.pod)
			for key, want := range tt.has {
				if tolerates(got, key) != want {
					t.Errorf("the pod tolerates %s: %t; tolerations %+v", key, !want, got.Spec.Tolerations)
				}
			}
		})
	}
}

// tolerates reports whether a pod tolerates taints NoSchedule with a key.
func tolerates(pod *corev1.Pod, key string) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == key && t.Operator == corev1.TolerationOpExists && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}
