// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// amounts are the limits of a container.
type amounts map[corev1.ResourceName]string

// dialectPod returns a pod whose containers have these limits. The first container is an init
// container.
func dialectPod(containers ...amounts) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "dialects-"}}
	for i, list := range containers {
		c := corev1.Container{Name: "c" + string(rune('0'+i)), Image: "none", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
		for name, amount := range list {
			c.Resources.Limits[name] = resource.MustParse(amount)
		}
		if i == 0 {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	return pod
}

// TestPolicyForDialects checks the chart's policy for dialects on the API server. The names come from
// the configuration. The policy admits a pod that the nodes of one pool can run.
func TestPolicyForDialects(t *testing.T) {
	t.Parallel()
	const (
		own, ownCores = "nri-vgpu.io/vgpu-memory", "nri-vgpu.io/vgpu-cores"
		alnair        = "alnair/vgpu-memory"
		slots         = "example.com/slot"
	)
	empty, fine := amounts{}, amounts{own: "1024", ownCores: "20", "memory": "1Gi"}
	mixed, zero := amounts{own: "1024", alnair: "2"}, amounts{own: "1024", alnair: "0"}
	renamed, formerly := amounts{own: "1024", slots: "1"}, amounts{own: "1024", "k8s.amazonaws.com/vgpu": "1"}
	const withoutAlnair = `config.pool=[{"name":"own","node_selector":"pool=own","dialects":{"alnair":{"enabled":false}}}]`
	for name, test := range map[string]struct {
		args             []string
		admits, rejected []*corev1.Pod
	}{
		"default": {
			nil,
			[]*corev1.Pod{dialectPod(empty, fine), dialectPod(empty, zero), dialectPod(fine, amounts{alnair: "2"})},
			[]*corev1.Pod{dialectPod(empty, fine, mixed), dialectPod(mixed, empty), dialectPod(empty, formerly)},
		},
		"another name": {
			[]string{"--set", "config.dialects.aws.slots=" + slots},
			[]*corev1.Pod{dialectPod(empty, formerly)}, []*corev1.Pod{dialectPod(empty, renamed)},
		},
		"disabled": {
			[]string{"--set", "config.dialects.alnair.enabled=false"},
			[]*corev1.Pod{dialectPod(empty, mixed)}, []*corev1.Pod{dialectPod(empty, formerly)},
		},
		"a pool": {
			[]string{"--set-json", withoutAlnair},
			[]*corev1.Pod{dialectPod(empty, mixed)}, []*corev1.Pod{dialectPod(empty, formerly), dialectPod(formerly, mixed)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin, namespace := clientOf(t, plane.admin), unique("dialects")
			labels := map[string]string{"dialects": namespace}
			if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := serviceAccount(t, namespace, "default"); err != nil {
				t.Fatal(err)
			}
			dialectPolicy(t, admin, namespace, labels, test.args...)
			create := func(pod *corev1.Pod) error {
				_, err := admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			}
			eventually.Holds(t, 20*time.Second, "the policy is in force", func() bool { return create(test.rejected[0]) != nil })
			for i, pod := range test.rejected {
				if err := create(pod); !refused(err) || !strings.Contains(err.Error(), "request resources of two dialects") {
					t.Errorf("rejected pod %d: %v", i, err)
				}
			}
			for i, pod := range test.admits {
				if err := create(pod); err != nil {
					t.Errorf("admitted pod %d: %v", i, err)
				}
			}
		})
	}
}

// chart renders one template of the chart.
func chart(t *testing.T, release, file string, args ...string) string {
	t.Helper()
	const root = "../../.."
	helm, err := components.HelmProgram(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), helm, append([]string{"template", release, root + "/deploy/chart", "--show-only", file}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm template: %v: %s", err, &stderr)
	}
	return string(out)
}

// dialectPolicy installs the chart's policy for the namespaces with the labels.
func dialectPolicy(t *testing.T, admin kubernetes.Interface, name string, labels map[string]string, args ...string) {
	t.Helper()
	out := chart(t, name, "templates/dialects.yaml", append([]string{"--set", "fullnameOverride=" + name}, args...)...)
	policy, binding, found := strings.Cut(strings.TrimPrefix(out, "---\n"), "\n---\n")
	if !found {
		t.Fatalf("want a policy and a binding: %s", out)
	}
	var p admissionv1.ValidatingAdmissionPolicy
	var b admissionv1.ValidatingAdmissionPolicyBinding
	if err := yaml.UnmarshalStrict([]byte(policy), &p); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(binding), &b); err != nil {
		t.Fatal(err)
	}
	b.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: labels}}
	api := admin.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), &p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = api.ValidatingAdmissionPolicies().Delete(context.Background(), p.Name, metav1.DeleteOptions{})
	})
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = api.ValidatingAdmissionPolicyBindings().Delete(context.Background(), b.Name, metav1.DeleteOptions{})
	})
}
