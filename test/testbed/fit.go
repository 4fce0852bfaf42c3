// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

// ApplyFitPolicy creates the chart's policy for the mode fit of scheduling, with values such as
// "config.dialects.hami.enabled=true". The API server applies the policy some moments later. remove
// removes the policy.
func ApplyFitPolicy(ctx context.Context, client kubernetes.Interface, source string, log io.Writer, values ...string) (remove func() error, err error) {
	program, err := components.HelmProgram(ctx, source, log)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, program, "template", filepath.Join(source, "deploy", "chart"), "--namespace", Namespace,
		"--kube-version", "1.37", "--show-only", "templates/fit.yaml", "--set", strings.Join(append(values, "config.scheduling.mode=fit"), ",")).Output()
	if err != nil {
		return nil, fmt.Errorf("render the policy: %w", err)
	}
	var policy admissionv1.MutatingAdmissionPolicy
	var binding admissionv1.MutatingAdmissionPolicyBinding
	documents := strings.Split(string(out), "\n---\n")
	if len(documents) < 2 {
		return nil, fmt.Errorf("the chart renders %d documents, want a policy and a binding", len(documents))
	}
	for i, into := range []any{&policy, &binding} {
		if err := yaml.UnmarshalStrict([]byte(documents[len(documents)-2+i]), into); err != nil {
			return nil, fmt.Errorf("read the policy: %w", err)
		}
	}
	policies, bindings := client.AdmissionregistrationV1().MutatingAdmissionPolicies(), client.AdmissionregistrationV1().MutatingAdmissionPolicyBindings()
	remove = func() error {
		return errors.Join(
			bindings.Delete(context.Background(), binding.Name, metav1.DeleteOptions{}),
			policies.Delete(context.Background(), policy.Name, metav1.DeleteOptions{}))
	}
	if _, err := policies.Create(ctx, &policy, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create the policy: %w", err)
	}
	if _, err := bindings.Create(ctx, &binding, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("bind the policy: %w", err)
	}
	return remove, nil
}
