// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// limit creates the quota in docs/how-to/quotas.md with an amount of memory, and waits until the API
// server enforces the quota.
func limit(t *testing.T, memory string) {
	t.Helper()
	quotas := bed.Client.CoreV1().ResourceQuotas(metav1.NamespaceDefault)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"requests.nri-vgpu.io/vgpu-memory":            resource.MustParse(memory),
			"requests.nri-vgpu.io/vgpu-memory-percentage": resource.MustParse("0"),
		}},
	}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := quotas.Delete(context.Background(), quota.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	eventually.Holds(t, patience, "the quota is in force", func() bool {
		now, err := quotas.Get(t.Context(), quota.Name, metav1.GetOptions{})
		return err == nil && len(now.Status.Hard) == len(quota.Spec.Hard)
	})
}

// TestQuotaCountsAllGPUs checks, with amounts that are totals, that a quota counts the memory of all
// GPUs of a container. The test also checks that no container avoids the quota.
func TestQuotaCountsAllGPUs(t *testing.T) {
	configure(t, "[dialects.native]\namounts = \"total\"\n")
	limit(t, "6144")
	two := cudaContainer(testbed.Limits{testbed.Number: 2, testbed.Memory: 4096, testbed.Cores: 50})
	two.Command = []string{"sh", "-c", "trap exit TERM; info && { spin --duration 4 & spin --device 1 --duration 4 & wait; } && " +
		"{ fill --hold 3600 & fill --device 1 --hold 3600 & wait; }"}
	create(t, testbed.Pod("two", two))
	pods := []*corev1.Pod{running(t, "two")}
	readme{of: "two GPUs", part: 2 * gib, percent: 25}.judge(t, pods[0], watch(t, pods)[0])

	for name, limits := range map[string]testbed.Limits{
		"beyond":  {testbed.Number: 2, testbed.Memory: 4096},
		"percent": {testbed.Percentage: 10},
	} {
		if _, err := bed.Create(t.Context(), testbed.Pod(name, cudaContainer(limits))); !apierrors.IsForbidden(err) {
			t.Errorf("the quota does not forbid pod %s: %v", name, err)
		}
	}
	create(t, testbed.Pod("rest", filler("main", testbed.Limits{testbed.Memory: 2048})))
	checkFilled(t, "rest", 2*gib)

	unnamed := testbed.Pod("unnamed", cudaContainer(testbed.Limits{testbed.Number: 1}))
	create(t, unnamed)
	nudge := bed.Nudger(unnamed.Name)
	if _, err := bed.WaitPod(t.Context(), unnamed.Name, "refused", patience, func(pod *corev1.Pod) bool {
		nudge(t.Context())
		return refusedBy("names no memory")(pod)
	}); err != nil {
		t.Error(err)
	}
}
