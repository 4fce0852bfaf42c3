// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// TestPolicyFollowsTheConfiguration checks that the policy follows config.toml. The patcher may
// advertise the names of the configured dialects, and withdraw names that config.toml no longer
// contains.
func TestPolicyFollowsTheConfiguration(t *testing.T) {
	w := &world{t: t, node: "follows", admin: clientOf(t, plane.admin)}
	w.register()
	t.Cleanup(w.remove)
	stolen := clientOf(t, patcherConfig(t, w.node)).CoreV1().Nodes()
	patch := func(listed, value string) error {
		body := `{"metadata":{"annotations":{"nri-vgpu.io/advertised":` + listed + `}},"status":{"capacity":{"example.com/part":` + value + `}}}`
		_, err := stolen.Patch(t.Context(), w.node, types.MergePatchType, []byte(body), metav1.PatchOptions{}, "status")
		return err
	}
	advertise := func() error { return patch(`"example.com/part"`, `"4"`) }
	if err := advertise(); !refused(err) {
		t.Errorf("a name that is not configured was not refused: %v", err)
	}
	configure(t, w.admin, "[dialects]\nmetagpu.device_sharing = [{ resource_name = \"example.com/part\" }]\n")
	eventually.Holds(t, 10*time.Second, "the policy takes a name that is configured", func() bool { return advertise() == nil })
	configure(t, w.admin, "[dialects]\nnative.enabled = true\n")
	if err := patch(`null`, `null`); err != nil {
		t.Errorf("a name that was advertised before cannot be withdrawn: %v", err)
	}
	eventually.Holds(t, 10*time.Second, "the policy refuses a name that is not configured any more", func() bool { return refused(advertise()) })
}

// TestPolicyFollowsTheDialects checks that the patcher may advertise HAMi's names only while a dialect or
// pool of the chart's values has the names. Without Helm, the operator lists the names.
func TestPolicyFollowsTheDialects(t *testing.T) {
	w := &world{t: t, node: "dialects", admin: clientOf(t, plane.admin)}
	w.register()
	t.Cleanup(w.remove)
	stolen := clientOf(t, patcherConfig(t, w.node)).CoreV1().Nodes()
	patch := func(listed, value string) error {
		body := `{"metadata":{"annotations":{"nri-vgpu.io/advertised":` + listed + `}},"status":{"capacity":{"nvidia.com/gpu":` + value + `,"nvidia.com/priority":` + value + `}}}`
		_, err := stolen.Patch(t.Context(), w.node, types.MergePatchType, []byte(body), metav1.PatchOptions{}, "status")
		return err
	}
	const (
		none = `config.node.foreign_resources=[]`
		on   = `config.dialects.hami.enabled=true`
		t4   = `config.pool=[{"name":"t4","node_selector":"nvidia.com/gpu.product=Tesla-T4","dialects":{"hami":{"number_per_gpu":4}}}]`
		pool = `config.pool=[{"name":"h","node_selector":"gpu=hami","node":{"foreign_resources":[]},"dialects":{"hami":{"enabled":true}}}]`
		file = "configFile=[node]\nforeign_resources = []\n"
	)
	for _, test := range []struct {
		name   string
		args   []string
		listed string // by the operator, in addition
		allows bool
	}{
		{name: "on, and named in a pool", args: []string{"--set-json", none, "--set", on, "--set-json", t4}, allows: true},
		{name: "off"},
		{name: "on in a pool", args: []string{"--set-json", pool}, allows: true},
		{name: "off, and the names in a file", args: []string{"--set-literal", file + "[dialects.hami]\nnumber = \"nvidia.com/gpu\"\n# enabled = true\n"}},
		{name: "on in a file", args: []string{"--set-literal", file + "[ dialects.hami ] # as HAMi [1]\nenabled = true\n"}, allows: true},
		{name: "one name alone", listed: "nvidia.com/gpu\n"},
		{name: "listed by the operator", listed: "  nvidia.com/gpu\nnvidia.com/priority\n", allows: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var m corev1.ConfigMap
			if err := yaml.UnmarshalStrict([]byte(chart(t, "nri-vgpu", "templates/configmap.yaml", test.args...)), &m); err != nil {
				t.Fatal(err)
			}
			m.Data["resources"] += "\n" + test.listed
			setConfigMap(t, w.admin, m.Data)
			eventually.Holds(t, 10*time.Second, "the policy follows", func() bool {
				err := patch(`"nvidia.com/gpu,nvidia.com/priority"`, `"4"`)
				return test.allows && err == nil || !test.allows && refused(err) && strings.Contains(err.Error(), "nvidia.com/priority")
			})
			if err := patch(`null`, `null`); err != nil && test.allows {
				t.Errorf("names that were advertised before cannot be withdrawn: %v", err)
			}
		})
	}
}

// configure sets config.toml for the duration of the test.
func configure(t *testing.T, admin kubernetes.Interface, content string) {
	t.Helper()
	if _, err := config.Parse([]byte(content)); err != nil {
		t.Fatal(err)
	}
	setConfigMap(t, admin, map[string]string{"config.toml": content})
}

// setConfigMap sets some keys of the ConfigMap for the duration of the test.
func setConfigMap(t *testing.T, admin kubernetes.Interface, data map[string]string) {
	t.Helper()
	configMaps := admin.CoreV1().ConfigMaps(system)
	before, err := configMaps.Get(t.Context(), "nri-vgpu", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed := before.DeepCopy()
	maps.Copy(changed.Data, data)
	if _, err := configMaps.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		before.ResourceVersion = ""
		if _, err := configMaps.Update(context.Background(), before, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// refusedAsReserved reports whether the policy nri-vgpu-annotations refused a request.
func refusedAsReserved(err error) bool {
	return refused(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'nri-vgpu-annotations'")
}

// TestAnnotationsOnPodsAreReserved checks that users write only the annotations of nri-vgpu that
// are for users. Only the administrator decides which pods may run while the plugin is down. Only a
// binding may have an assignment of GPUs (TestAssignmentsComeWithTheBinding).
func TestAnnotationsOnPodsAreReserved(t *testing.T) {
	admin := clientOf(t, plane.admin)
	for name, labels := range map[string]map[string]string{
		"tenant":  nil,
		"network": {"nri-vgpu.io/may-tolerate-missing": "true"},
	} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := admin.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := admin.CoreV1().ServiceAccounts(name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitReserved(t, admin.CoreV1().Pods("tenant"))
	const forged = `{"podUID":"x","container":"main","devices":[{"uuid":"GPU-a","memoryBytes":17179869184}]}`
	tests := []struct {
		name, namespace, key, value string
		allowed                     bool
		bound                       bool // allowed in a binding
	}{
		{"forged assignment", "tenant", "nri-vgpu.io/assignment", forged, false, false},
		{"forged assignment where more is allowed", "network", "nri-vgpu.io/assignment", forged, false, false},
		{"an unknown annotation", "tenant", "nri-vgpu.io/future", "x", false, false},
		{"assigned GPUs", "tenant", "nri-vgpu.io/assigned", `{"main":["GPU-a"]}`, false, true},
		{"assigned GPUs where more is allowed", "network", "nri-vgpu.io/assigned", `{"main":["GPU-a"]}`, false, true},
		{"running without the plugin", "tenant", "nri-vgpu.io/tolerate-missing", "true", false, false},
		{"running without the plugin where the cluster allows it", "network", "nri-vgpu.io/tolerate-missing", "true", true, true},
		{"a policy of its own", "tenant", "nri-vgpu.io/compute-policy", "share", true, true},
		{"another program's annotation", "tenant", "example.com/nri-vgpu.io", "x", true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pods := admin.CoreV1().Pods(tt.namespace)
			check := func(doing string, allowed bool, err error) {
				t.Helper()
				if allowed && err != nil || !allowed && !refused(err) {
					t.Errorf("%s: got %v, allowed: %v", doing, err, allowed)
				}
			}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: map[string]string{tt.key: tt.value}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
			}
			_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
			check("created with the annotation", tt.allowed, err)
			pod.Annotations = nil
			plain, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			binding := &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: plain.Name, Namespace: tt.namespace, Annotations: map[string]string{tt.key: tt.value}},
				Target:     corev1.ObjectReference{Kind: "Node", Name: "n"},
			}
			check("bound with the annotation", tt.bound, pods.Bind(t.Context(), binding, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
			plain.Annotations = map[string]string{tt.key: tt.value}
			_, err = pods.UpdateStatus(t.Context(), plain, metav1.UpdateOptions{})
			check("set by the pod's status", tt.allowed, err)
			if !tt.allowed {
				_, err = pods.Update(t.Context(), plain, metav1.UpdateOptions{})
				check("set later", false, err)
			}
		})
	}
}

// awaitReserved waits until the policy nri-vgpu-annotations is in force.
func awaitReserved(t *testing.T, pods typedcorev1.PodInterface) {
	t.Helper()
	eventually.Holds(t, 10*time.Second, "the policy is in force", func() bool {
		_, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: map[string]string{"nri-vgpu.io/assigned": "{}"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return refusedAsReserved(err)
	})
}

// binders are the two ways to bind a pod.
var binders = map[string]func(context.Context, kubernetes.Interface, *corev1.Binding) error{
	"pods/binding": func(ctx context.Context, client kubernetes.Interface, b *corev1.Binding) error {
		return client.CoreV1().Pods(b.Namespace).Bind(ctx, b, metav1.CreateOptions{})
	},
	"bindings": func(ctx context.Context, client kubernetes.Interface, b *corev1.Binding) error {
		return client.CoreV1().RESTClient().Post().Namespace(b.Namespace).Resource("bindings").Body(b).Do(ctx).Error()
	},
}

// TestAssignmentsComeWithTheBinding checks that an account that may bind pods assigns GPUs with the
// binding. No account can later change or remove the assignment.
func TestAssignmentsComeWithTheBinding(t *testing.T) {
	const (
		key, value = "nri-vgpu.io/assigned", `{"main":["GPU-a"]}`
		namespace  = "scheduled"
	)
	admin := clientOf(t, plane.admin)
	as := rest.CopyConfig(plane.admin)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-scheduler"}
	scheduler := clientOf(t, as)
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := serviceAccount(t, namespace, "default"); err != nil {
		t.Fatal(err)
	}
	pods := admin.CoreV1().Pods(namespace)
	awaitReserved(t, pods)
	for way, bind := range binders {
		t.Run(way, func(t *testing.T) {
			pod, err := pods.Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Annotations: map[string]string{"example.com/a": "x"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			binding := func(annotations map[string]string) *corev1.Binding {
				return &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace, Annotations: annotations},
					Target:     corev1.ObjectReference{Kind: "Node", Name: "n"},
				}
			}
			for _, other := range []string{"nri-vgpu.io/assignment", "nri-vgpu.io/tolerate-missing", "nri-vgpu.io/gpus"} {
				if err := bind(t.Context(), scheduler, binding(map[string]string{key: value, other: "true"})); !refusedAsReserved(err) {
					t.Errorf("bound with %s: %v", other, err)
				}
			}
			if err := bind(t.Context(), scheduler, binding(map[string]string{key: value, "example.com/b": "y"})); err != nil {
				t.Fatal(err)
			}
			bound, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
			want := map[string]string{"example.com/a": "x", "example.com/b": "y", key: value}
			if err != nil || bound.Spec.NodeName != "n" || !maps.Equal(bound.Annotations, want) {
				t.Fatalf("bound to %q with %v, %v", bound.Spec.NodeName, bound.Annotations, err)
			}
			if err := bind(t.Context(), scheduler, binding(map[string]string{key: `{"main":["GPU-b"]}`})); !apierrors.IsConflict(err) {
				t.Errorf("bound a second time: %v", err)
			}
			staysAssigned(t, map[string]kubernetes.Interface{"administrator": admin, "scheduler": scheduler}, bound, key)
		})
	}
}

// staysAssigned checks that no client may change or remove a pod's assignment, and that other changes
// of the pod are possible.
func staysAssigned(t *testing.T, clients map[string]kubernetes.Interface, pod *corev1.Pod, key string) {
	t.Helper()
	patch := func(client kubernetes.Interface, body string, subresource ...string) (*corev1.Pod, error) {
		return client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, subresource...)
	}
	for name, client := range clients {
		for _, subresource := range [][]string{nil, {"status"}} {
			if name == "scheduler" && subresource == nil {
				continue // RBAC lets the scheduler write only the status
			}
			for _, value := range []string{`"{\"main\":[\"GPU-b\"]}"`, `""`, `null`} {
				if _, err := patch(client, `{"metadata":{"annotations":{"`+key+`":`+value+`}}}`, subresource...); !refusedAsReserved(err) {
					t.Errorf("the %s sets it to %s by %v: %v", name, value, subresource, err)
				}
			}
			if _, err := patch(client, `{"metadata":{"annotations":null}}`, subresource...); !refusedAsReserved(err) {
				t.Errorf("the %s removes all annotations by %v: %v", name, subresource, err)
			}
		}
	}
	for _, change := range []struct{ body, subresource string }{
		{`{"metadata":{"annotations":{"example.com/b":null,"example.com/c":"z"},"labels":{"a":"b"}}}`, ""},
		{`{"metadata":{"annotations":{"nri-vgpu.io/compute-policy":"share"}}}`, ""},
		{`{"metadata":{"annotations":{"example.com/c":null}}}`, "status"},
		{`{"status":{"phase":"Running","message":"kubelet was here"}}`, "status"},
	} {
		var subresource []string
		if change.subresource != "" {
			subresource = append(subresource, change.subresource)
		}
		after, err := patch(clients["administrator"], change.body, subresource...)
		if err != nil || after.Annotations[key] != pod.Annotations[key] {
			t.Errorf("%s, after which the pod has %v: %v", change.body, after.GetAnnotations(), err)
		}
	}
}

// TestWhatAPodHadBeforeThePolicyStays checks that kubelet can still write a pod that is older than
// the policy.
func TestWhatAPodHadBeforeThePolicyStays(t *testing.T) {
	admin := clientOf(t, plane.admin)
	bindings := admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	binding, err := bindings.Get(t.Context(), "nri-vgpu-annotations", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pods := admin.CoreV1().Pods(system)
	var old *corev1.Pod
	eventually.Holds(t, 10*time.Second, "a pod with the annotation is made while there is no policy", func() bool {
		old, err = pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "old-", Annotations: map[string]string{"nri-vgpu.io/assignment": "x"}},
			Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}, metav1.CreateOptions{})
		return err == nil
	})
	binding.ResourceVersion, binding.UID = "", ""
	if _, err := bindings.Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 10*time.Second, "the policy is back", func() bool {
		changed := old.DeepCopy()
		changed.Annotations["nri-vgpu.io/assignment"] = "y"
		_, err := pods.Update(t.Context(), changed, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return refused(err)
	})
	old.Status.Message = "kubelet was here"
	if _, err := pods.UpdateStatus(t.Context(), old, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the pod's status cannot be written any more: %v", err)
	}
}

// TestOnlyKubeletMakesMirrors checks that only kubelet can make mirrors of static pods. A forged
// mirror claims to be a static pod of the node.
func TestOnlyKubeletMakesMirrors(t *testing.T) {
	tenant := clientOf(t, plane.admin)
	as := rest.CopyConfig(plane.admin)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:node:n", Groups: []string{"system:nodes", "system:masters"}}
	const mirror = "kubernetes.io/config.mirror"
	pod := func(annotation string) *corev1.Pod {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
			Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}
		if annotation != "" {
			pod.Annotations = map[string]string{annotation: "hash"}
		}
		if annotation == mirror { // the API server requires this of mirrors
			pod.Spec.ServiceAccountName, pod.Spec.NodeName = "", "n"
		}
		return pod
	}
	dry := []string{metav1.DryRunAll}
	eventually.Holds(t, 10*time.Second, "the policy is in force", func() bool {
		_, err := tenant.CoreV1().Pods(system).Create(t.Context(), pod(mirror), metav1.CreateOptions{DryRun: dry})
		return apierrors.IsForbidden(err)
	})
	for _, key := range []string{mirror, "kubernetes.io/config.hash", "kubernetes.io/config.source"} {
		made, err := clientOf(t, as).CoreV1().Pods(system).Create(t.Context(), pod(key), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Labels = map[string]string{"a": "b"}
		if _, err := tenant.CoreV1().Pods(system).Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Errorf("another change of a pod with %s: %v", key, err)
		}
		for _, config := range []*rest.Config{plane.admin, as} {
			kubelet := config == as
			pods := clientOf(t, config).CoreV1().Pods(system)
			check := func(doing string, err error) {
				t.Helper()
				if kubelet && err != nil || !kubelet && !apierrors.IsForbidden(err) {
					t.Errorf("%s: got %v, by kubelet: %v", doing, err, kubelet)
				}
			}
			_, err := pods.Create(t.Context(), pod(key), metav1.CreateOptions{DryRun: dry})
			check("created with "+key, err)
			plain, err := tenant.CoreV1().Pods(system).Create(t.Context(), pod(""), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			binding := &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: plain.Name, Namespace: system, Annotations: map[string]string{key: "hash"}},
				Target:     corev1.ObjectReference{Kind: "Node", Name: "n"},
			}
			check("bound with "+key, pods.Bind(t.Context(), binding, metav1.CreateOptions{DryRun: dry}))
			if key == mirror {
				continue // the API server itself rejects a later annotation
			}
			plain.Annotations = map[string]string{key: "hash"}
			_, err = pods.UpdateStatus(t.Context(), plain, metav1.UpdateOptions{DryRun: dry})
			check(key+" set by its status", err)
			_, err = pods.Update(t.Context(), plain, metav1.UpdateOptions{DryRun: dry})
			check(key+" set later", err)
		}
	}
}
