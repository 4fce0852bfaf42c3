// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

const (
	system  = "nri-vgpu-system"
	account = "extended-resource-patcher"
)

// kinds are the kinds in the manifest, and whether the kinds are namespaced.
var kinds = map[string]struct {
	resource   schema.GroupVersionResource
	namespaced bool
}{
	"Namespace":                        {resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}},
	"ServiceAccount":                   {schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, true},
	"ConfigMap":                        {schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true},
	"DaemonSet":                        {schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, true},
	"ClusterRole":                      {resource: schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}},
	"ClusterRoleBinding":               {resource: schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}},
	"ValidatingAdmissionPolicy":        {resource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}},
	"ValidatingAdmissionPolicyBinding": {resource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}},
}

// install creates all objects of the released manifest. The API server checks every field.
func install(ctx context.Context, admin *rest.Config, file string) error {
	client, err := dynamic.NewForConfig(admin)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := create(ctx, client, document); err != nil {
			return err
		}
	}
}

func create(ctx context.Context, client dynamic.Interface, document []byte) error {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(document, &object.Object); err != nil {
		return err
	}
	kind, ok := kinds[object.GetKind()]
	if !ok {
		return fmt.Errorf("unknown kind %q", object.GetKind())
	}
	var target dynamic.ResourceInterface = client.Resource(kind.resource)
	if kind.namespaced {
		target = client.Resource(kind.resource).Namespace(object.GetNamespace())
	}
	_, err := target.Create(ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		return fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// credentials returns the configuration of a pod of ours on a node. As from kubelet, the token of
// the pod's service account names the pod and the node.
func credentials(ctx context.Context, admin *rest.Config, account, node string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return nil, err
	}
	pod, err := client.CoreV1().Pods(system).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "of-ours-"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account,
			Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	token, err := client.CoreV1().ServiceAccounts(system).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = token.Status.Token
	return cfg, nil
}
