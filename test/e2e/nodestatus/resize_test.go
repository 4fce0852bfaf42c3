// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const wanted = `{"main":{"memory":2048}}`

// TestWhoMayResize checks that only accounts that may patch pods/resize request sizes for a pod, and
// only after its creation.
func TestWhoMayResize(t *testing.T) {
	admin := clientOf(t, plane.admin)
	write := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"*"}}
	tenant := as(t, "writes-pods", write)
	resizer := as(t, "resizes-pods", write, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/resize"}, Verbs: []string{"patch"}})
	eventually.Holds(t, 10*time.Second, "the policy is in force and refuses sizes of new pods", func() bool {
		_, err := resizer.CoreV1().Pods(system).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: map[string]string{resize.Annotation: wanted}},
			Spec:       corev1.PodSpec{ServiceAccountName: "nri-vgpu", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return refusedAsReserved(err)
	})
	pod := bare(t, admin, "", nil)
	set := func(value any) map[string]any { return annotations(map[string]any{resize.Annotation: value}) }
	for _, by := range [][]string{nil, {"status"}} {
		if err := patchPod(t, tenant, pod, set(wanted), by...); !refusedAsReserved(err) {
			t.Errorf("an account without the right requested a size by %v: %v", by, err)
		}
	}
	if err := patchPod(t, resizer, pod, set(wanted)); err != nil {
		t.Errorf("requested by an account with the right: %v", err)
	}
	for _, value := range []any{`{}`, nil} {
		if err := patchPod(t, tenant, pod, set(value)); !refusedAsReserved(err) {
			t.Errorf("an account without the right changed it to %v: %v", value, err)
		}
	}
	if err := patchPod(t, tenant, pod, map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}); err != nil {
		t.Errorf("another change beside it: %v", err)
	}
	for _, value := range []any{`{}`, nil} {
		if err := patchPod(t, resizer, pod, set(value)); err != nil {
			t.Errorf("changed to %v by an account with the right: %v", value, err)
		}
	}
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: system, Annotations: map[string]string{resize.Annotation: wanted}},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "n"},
	}
	if err := admin.CoreV1().Pods(system).Bind(t.Context(), binding, metav1.CreateOptions{}); !refusedAsReserved(err) {
		t.Errorf("bound with a size: %v", err)
	}
}

// TestOnlyTheAgentReportsSizes checks that the agent reports the sizes of its node's pods by one
// annotation and two conditions. The agent can change nothing else of a status. No other account can
// write the report.
func TestOnlyTheAgentReportsSizes(t *testing.T) {
	admin := clientOf(t, plane.admin)
	cfg, err := credentials(t.Context(), plane.admin, "nri-vgpu", "reports")
	if err != nil {
		t.Fatal(err)
	}
	agent := clientOf(t, cfg)
	pod := bare(t, admin, "reports", nil)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, "10.0.0.9", []corev1.PodIP{{IP: "10.0.0.9"}}
	if pod, err = admin.CoreV1().Pods(system).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	get := func() *corev1.Pod {
		t.Helper()
		now, err := admin.CoreV1().Pods(system).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	report := func(text string, pending, running corev1.ConditionStatus) error {
		return pods.Report(t.Context(), agent, pod, resize.ReportAnnotation, text, []corev1.PodCondition{
			{Type: resize.ConditionPending, Status: pending, Reason: resize.Deferred, LastTransitionTime: metav1.Now()},
			{Type: resize.ConditionInProgress, Status: running, Reason: resize.InProgress, LastTransitionTime: metav1.Now()},
		})
	}
	if err := report(`{"main":{"pending":"Deferred"}}`, corev1.ConditionTrue, ""); err != nil {
		t.Fatalf("the agent may not report: %v", err)
	}
	if now := get(); len(now.Status.Conditions) != 2 || now.Status.PodIP != "10.0.0.9" || now.Annotations[resize.ReportAnnotation] == "" {
		t.Errorf("after a report: %v, %v", now.Annotations, now.Status)
	}
	for _, value := range []string{`"x"`, `null`} {
		for _, by := range [][]string{nil, {"status"}} {
			body := `{"metadata":{"annotations":{"nri-vgpu.io/resized":` + value + `}}}`
			_, err := admin.CoreV1().Pods(system).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, by...)
			if !refusedAsReserved(err) {
				t.Errorf("the administrator set the report to %s by %v: %v", value, by, err)
			}
		}
	}
	for name, status := range map[string]map[string]any{
		"another condition": {"conditions": []any{map[string]any{"type": "Ready", "status": "False"}}},
		"no condition":      {"conditions": nil},
		"the phase":         {"phase": "Failed"},
		"the message":       {"message": "x"},
		"the host's IP":     {"hostIP": "10.0.0.1"},
		"a container":       {"containerStatuses": []any{map[string]any{"name": "main", "containerID": "x://y", "image": "i", "imageID": "", "ready": true, "restartCount": 0}}},
	} {
		if err := patchPod(t, agent, pod, map[string]any{"status": status}, "status"); !refused(err) {
			t.Errorf("the agent changed %s: %v", name, err)
		}
	}
	other := bare(t, admin, "elsewhere", nil)
	if err := patchPod(t, agent, other, annotations(map[string]any{resize.ReportAnnotation: "x"}), "status"); !refused(err) {
		t.Errorf("the agent reported about a pod of another node: %v", err)
	}
	if err := report("", "", corev1.ConditionTrue); err != nil {
		t.Fatal(err)
	}
	if err := report("", "", ""); err != nil {
		t.Fatal(err)
	}
	if now := get(); len(now.Status.Conditions) != 1 || len(now.Annotations) != 0 {
		t.Errorf("after the last report: %v, %v", now.Annotations, now.Status.Conditions)
	}
}
