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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

// ApplyFitPolicy creates the chart's policies for the mode fit of scheduling, with values such as
// "config.dialects.hami.enabled=true". The API server applies the policies some moments later. remove
// removes the policies.
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
	return ApplyPolicies(ctx, client, string(out))
}

// ApplyPolicies creates the admission policies and bindings of a text in YAML. The API server applies the
// policies some moments later. remove removes the policies.
func ApplyPolicies(ctx context.Context, client kubernetes.Interface, text string) (remove func() error, err error) {
	var removes []func() error
	remove = func() error {
		var errs []error
		for _, one := range removes {
			errs = append(errs, one())
		}
		return errors.Join(errs...)
	}
	api := client.AdmissionregistrationV1()
	for document := range strings.SplitSeq(text, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			return nil, errors.Join(fmt.Errorf("read the policies: %w", err), remove())
		}
		var one func() error
		switch kind.Kind {
		case "MutatingAdmissionPolicy":
			one, err = apply(ctx, document, api.MutatingAdmissionPolicies())
		case "MutatingAdmissionPolicyBinding":
			one, err = apply(ctx, document, api.MutatingAdmissionPolicyBindings())
		case "ValidatingAdmissionPolicy":
			one, err = apply(ctx, document, api.ValidatingAdmissionPolicies())
		case "ValidatingAdmissionPolicyBinding":
			one, err = apply(ctx, document, api.ValidatingAdmissionPolicyBindings())
		default:
			err = fmt.Errorf("the policies contain a %q", kind.Kind)
		}
		if err != nil {
			return nil, errors.Join(err, remove())
		}
		removes = append(removes, one)
	}
	return remove, nil
}

// objects creates and deletes the objects of a kind.
type objects[T any] interface {
	Create(context.Context, *T, metav1.CreateOptions) (*T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// apply creates the object in a document. remove removes the object.
func apply[T any](ctx context.Context, document string, all objects[T]) (remove func() error, err error) {
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
		return nil, fmt.Errorf("read a policy: %w", err)
	}
	name := any(object).(metav1.Object).GetName()
	if _, err := all.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create the policy %s: %w", name, err)
	}
	return func() error { return all.Delete(context.Background(), name, metav1.DeleteOptions{}) }, nil
}
