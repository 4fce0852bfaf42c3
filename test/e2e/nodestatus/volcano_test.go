// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"context"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
)

// as returns a client that impersonates a user with the rights of these rules.
func as(t *testing.T, user string, rules ...rbacv1.PolicyRule) kubernetes.Interface {
	t.Helper()
	allow(t, user, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}, rules...)
	cfg := rest.CopyConfig(plane.admin)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user}
	return clientOf(t, cfg)
}

// allow grants rights to a user or account, through a named role, until the test ends.
func allow(t *testing.T, name string, subject rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	t.Helper()
	admin := clientOf(t, plane.admin)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{subject},
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		_ = admin.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})
		_ = admin.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// bare returns a pod of the agent's own namespace, where service accounts exist.
func bare(t *testing.T, admin kubernetes.Interface, node string, annotations map[string]string) *corev1.Pod {
	t.Helper()
	pod, err := admin.CoreV1().Pods(system).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bare-", Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "nri-vgpu", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func patchPod(t *testing.T, client kubernetes.Interface, pod *corev1.Pod, patch map[string]any, subresources ...string) error {
	t.Helper()
	body, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, subresources...)
	return err
}

func annotations(values map[string]any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": values}}
}

// TestOnlySchedulersAssign checks that only a scheduler may write the assignments on pods.
// Volcano's scheduler trusts these assignments.
func TestOnlySchedulersAssign(t *testing.T) {
	admin := clientOf(t, plane.admin)
	write := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"*"}}
	tenant := as(t, "tenant", write)
	scheduler := as(t, "some-scheduler", write,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/binding"}, Verbs: []string{"create"}})
	for _, key := range []string{volcano.IDs, volcano.ToAllocate, volcano.Node, volcano.Time, volcano.BindTime, volcano.Phase} {
		t.Run(key, func(t *testing.T) {
			_, err := tenant.CoreV1().Pods(system).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "forged-", Annotations: map[string]string{key: "x"}},
				Spec:       corev1.PodSpec{ServiceAccountName: "nri-vgpu", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
			}, metav1.CreateOptions{})
			if !refused(err) {
				t.Errorf("a tenant created a pod with the assignment: %v", err)
			}
			pod := bare(t, admin, "", nil)
			for _, by := range [][]string{nil, {"status"}} {
				if err := patchPod(t, tenant, pod, annotations(map[string]any{key: "x"}), by...); !refused(err) {
					t.Errorf("a tenant set the assignment by %v: %v", by, err)
				}
			}
			if err := patchPod(t, scheduler, pod, annotations(map[string]any{key: "x"})); err != nil {
				t.Errorf("a scheduler may not set the assignment: %v", err)
			}
			if err := patchPod(t, tenant, pod, annotations(map[string]any{key: nil})); !refused(err) {
				t.Errorf("a tenant removed the assignment: %v", err)
			}
			if err := patchPod(t, tenant, pod, annotations(map[string]any{"mine": "x"})); err != nil {
				t.Errorf("a tenant may not set another annotation beside the assignment: %v", err)
			}
		})
	}
}

// TestAgentMayOnlyAnswer checks that the agent may write only the annotations that schedulers read,
// and only on pods of the node that its token names. The agent may add the assignment for
// nri-vgpu-scheduler, and may not change an assignment.
func TestAgentMayOnlyAnswer(t *testing.T) {
	admin := clientOf(t, plane.admin)
	cfg, err := credentials(t.Context(), plane.admin, "nri-vgpu", "answers")
	if err != nil {
		t.Fatal(err)
	}
	stolen := clientOf(t, cfg)
	own, other := bare(t, admin, "answers", nil), bare(t, admin, "elsewhere", nil)
	answer := annotations(map[string]any{
		volcano.IDs: "x", volcano.ToAllocate: "", volcano.Node: "answers", volcano.Time: volcano.Answered, volcano.Phase: volcano.Success,
	})
	if err := patchPod(t, stolen, own, answer, "status"); err != nil {
		t.Errorf("the agent may not answer for a pod of its node: %v", err)
	}
	chosen := annotations(map[string]any{assign.Annotation: `{"main":["GPU-a"]}`})
	if err := patchPod(t, stolen, own, chosen, "status"); err != nil {
		t.Errorf("the agent may not announce its choice for a pod of its node: %v", err)
	}
	for name, refusal := range map[string]error{
		"announce for another node's pod":   patchPod(t, stolen, other, chosen, "status"),
		"change its choice":                 patchPod(t, stolen, own, annotations(map[string]any{assign.Annotation: `{"main":["GPU-b"]}`}), "status"),
		"remove its choice":                 patchPod(t, stolen, own, annotations(map[string]any{assign.Annotation: nil}), "status"),
		"write another of our annotations":  patchPod(t, stolen, own, annotations(map[string]any{"nri-vgpu.io/gpus": "x"}), "status"),
		"answer for another node's pod":     patchPod(t, stolen, other, answer, "status"),
		"answer by way of the pod itself":   patchPod(t, stolen, own, answer),
		"write another annotation":          patchPod(t, stolen, own, annotations(map[string]any{"example.com/x": "y"}), "status"),
		"write when a pod was bound":        patchPod(t, stolen, own, annotations(map[string]any{volcano.BindTime: "1"}), "status"),
		"write a label":                     patchPod(t, stolen, own, map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}, "status"),
		"write a status":                    patchPod(t, stolen, own, map[string]any{"status": map[string]any{"phase": "Succeeded"}}, "status"),
		"write a status beside its answers": patchPod(t, stolen, own, map[string]any{"metadata": map[string]any{"annotations": map[string]any{volcano.Phase: "x"}}, "status": map[string]any{"podIP": "1.2.3.4"}}, "status"),
	} {
		if !refused(refusal) {
			t.Errorf("the agent may %s: %v", name, refusal)
		}
	}
}

// TestPatcherMayRegisterAndUnlock checks the patcher's rights to the annotations that Volcano's
// scheduler reads on a Node. The patcher may write its own annotations, and remove the scheduler's
// lock.
func TestPatcherMayRegisterAndUnlock(t *testing.T) {
	w := &world{t: t, node: "registers", admin: clientOf(t, plane.admin)}
	w.register()
	t.Cleanup(w.remove)
	stolen := clientOf(t, patcherConfig(t, w.node)).CoreV1().Nodes()
	patch := func(values map[string]any) error {
		body, err := json.Marshal(annotations(values))
		if err != nil {
			t.Fatal(err)
		}
		_, err = stolen.Patch(t.Context(), w.node, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	}
	if err := patch(map[string]any{volcano.Register: "x:", volcano.Handshake: "Reported now"}); err != nil {
		t.Errorf("the patcher may not register: %v", err)
	}
	if err := patch(map[string]any{volcano.Lock: "2026-11-21T14:00:00Z"}); !refused(err) {
		t.Errorf("the patcher may lock: %v", err)
	}
	if _, err := w.admin.CoreV1().Nodes().Patch(t.Context(), w.node, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"hamivgpu":"2026-11-21T14:00:00Z"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := patch(map[string]any{volcano.Lock: "2027-11-21T14:00:00Z"}); !refused(err) {
		t.Errorf("the patcher may lock again: %v", err)
	}
	if err := patch(map[string]any{volcano.Lock: nil}); err != nil {
		t.Errorf("the patcher may not unlock: %v", err)
	}
	if err := patch(map[string]any{volcano.Register: nil, volcano.Handshake: nil}); err != nil {
		t.Errorf("the patcher may not withdraw: %v", err)
	}
}
