// SPDX-License-Identifier: Apache-2.0

// Package deploy contains the manifests and the chart. The tests keep the manifests and the
// chart consistent with the rest of the repository.
package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// manifest decodes deploy/nri-vgpu.yaml. manifest fails on unknown and repeated fields.
func manifest(t *testing.T) []runtime.Object {
	t.Helper()
	content, err := os.ReadFile("nri-vgpu.yaml")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	var objects []runtime.Object
	for r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in:\n%.200s", err, document)
		}
		objects = append(objects, object)
	}
}

// find returns the objects of one type, by name.
func find[T any, P interface {
	*T
	runtime.Object
	GetName() string
}](t *testing.T) map[string]P {
	t.Helper()
	found := map[string]P{}
	for _, object := range manifest(t) {
		if match, ok := object.(P); ok {
			found[match.GetName()] = match
		}
	}
	return found
}

func TestEveryObjectIsOfAKnownKind(t *testing.T) {
	for _, object := range manifest(t) {
		switch object.(type) {
		case *corev1.Namespace, *corev1.ServiceAccount, *corev1.ConfigMap, *appsv1.DaemonSet,
			*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding,
			*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding:
		default:
			t.Errorf("%T is not expected in the manifest", object)
		}
	}
}

func TestConfigurationIsTheRepositorys(t *testing.T) {
	want, err := os.ReadFile("../config.toml")
	if err != nil {
		t.Fatal(err)
	}
	got := find[corev1.ConfigMap](t)["nri-vgpu"].Data["config.toml"]
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the ConfigMap differs from config.toml (-want +got):\n%s", diff)
	}
}

func TestImageIsThisRelease(t *testing.T) {
	for name, set := range find[appsv1.DaemonSet](t) {
		for _, c := range append(set.Spec.Template.Spec.InitContainers, set.Spec.Template.Spec.Containers...) {
			if want := version.Image(version.Base); c.Image != want {
				t.Errorf("%s/%s has image %s, want %s", name, c.Name, c.Image, want)
			}
		}
	}
}

func TestRightsAreAsSmallAsDocumented(t *testing.T) {
	want := map[string][]rbacv1.PolicyRule{
		"nri-vgpu": {
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
			{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"pods/status"}, Verbs: []string{"patch"}},
		},
		"extended-resource-patcher": {
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		},
	}
	got := map[string][]rbacv1.PolicyRule{}
	for name, role := range find[rbacv1.ClusterRole](t) {
		got[name] = role.Rules
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
}

// TestContainersReportTheirErrors checks that the statuses of failed containers contain the end of their
// logs. kubectl vgpu doctor shows the statuses.
func TestContainersReportTheirErrors(t *testing.T) {
	for name, set := range find[appsv1.DaemonSet](t) {
		for _, c := range slices.Concat(set.Spec.Template.Spec.InitContainers, set.Spec.Template.Spec.Containers) {
			if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
				t.Errorf("%s: the policy for messages of container %s is %q", name, c.Name, c.TerminationMessagePolicy)
			}
		}
	}
}

func TestPatcherHasNoPrivileges(t *testing.T) {
	spec := find[appsv1.DaemonSet](t)["extended-resource-patcher"].Spec.Template.Spec
	if spec.HostNetwork || spec.HostPID || spec.HostIPC {
		t.Error("the patcher shares a namespace with the host")
	}
	if spec.SecurityContext.RunAsNonRoot == nil || !*spec.SecurityContext.RunAsNonRoot {
		t.Error("the patcher may run as root")
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil && v.HostPath.Path != config.Default().Paths.RunDir {
			t.Errorf("the patcher mounts %s of the host", v.HostPath.Path)
		}
	}
	for _, m := range spec.Containers[0].VolumeMounts {
		if !m.ReadOnly {
			t.Errorf("the patcher may write to %s", m.MountPath)
		}
	}
}

// TestAgentSeesTheHostsPathsUnderTheirNames checks that each path is the same on the host and in
// the agent's container. The agent passes paths to the runtime, which mounts the paths from the
// host.
func TestAgentSeesTheHostsPathsUnderTheirNames(t *testing.T) {
	cfg := config.Default()
	paths := append([]string{
		cfg.Paths.InstallDir, cfg.Paths.RunDir, cfg.Paths.StateDir, filepath.Dir(cfg.NRI.SocketPath), cfg.Injection.CDIOutputDir,
	}, cfg.Injection.CDISpecDirs...)

	spec := find[appsv1.DaemonSet](t)["nri-vgpu"].Spec.Template.Spec
	sources := map[string]string{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			sources[v.Name] = v.HostPath.Path
		}
	}
	seen := map[string]string{}
	for _, m := range spec.Containers[0].VolumeMounts {
		seen[m.MountPath] = sources[m.Name]
	}
	for _, p := range paths {
		if seen[p] != p {
			t.Errorf("%s of the host is not at %s in the agent, but %q is", p, p, seen[p])
		}
	}
	if !spec.HostPID {
		t.Error("without the host's pid namespace NVML cannot name processes")
	}
	if spec.Containers[0].TerminationMessagePath == "" {
		t.Error("the default termination message path would be a file in the node's /dev")
	}
}

// TestTheAgentIsKnownByWhatItHas checks that guard and agent identify an agent by its privileges,
// in any namespace.
func TestTheAgentIsKnownByWhatItHas(t *testing.T) {
	if got := config.Default().Node.ExemptNamespaces; len(got) != 0 {
		t.Errorf("these containers are exempt: %v", got)
	}
	spec := find[appsv1.DaemonSet](t)["nri-vgpu"].Spec.Template.Spec
	agent := spec.Containers[0]
	if privileged := agent.SecurityContext.Privileged; privileged == nil || !*privileged {
		t.Fatal("the agent is not privileged")
	}
	var writable []string
	for _, m := range agent.VolumeMounts {
		k := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if path := spec.Volumes[k].HostPath; path != nil && !m.ReadOnly {
			writable = append(writable, path.Path)
		}
	}
	if !gpuaccess.Commands([]string{"/dev/kmsg"}, writable, config.Default().NRI.SocketPath) {
		t.Errorf("the agent's writable mounts do not identify the agent: %q", writable)
	}
}

// TestPolicyKnowsTheDefaultNames checks that the manifest lists the default names of resources for
// the policy for the patcher, and that the policy reserves HAMi's names.
func TestPolicyKnowsTheDefaultNames(t *testing.T) {
	d := config.Default().Dialects
	got := strings.Fields(find[corev1.ConfigMap](t)["nri-vgpu"].Data["resources"])
	if diff := cmp.Diff(request.Names(d), got); diff != "" {
		t.Errorf("resources (-default +manifest):\n%s", diff)
	}
	policy := find[admissionv1.ValidatingAdmissionPolicy](t)["extended-resource-patcher"]
	k := slices.IndexFunc(policy.Spec.Variables, func(v admissionv1.Variable) bool { return v.Name == "reserved" })
	if k < 0 {
		t.Fatal("the policy has no variable reserved")
	}
	var reserved []string
	if err := utiljson.Unmarshal([]byte(policy.Spec.Variables[k].Expression), &reserved); err != nil {
		t.Fatal(err)
	}
	ofHAMi := []string{d.HAMi.Number, d.HAMi.Memory, d.HAMi.MemoryPercentage, d.HAMi.Cores, d.HAMi.Priority}
	if diff := cmp.Diff(ofHAMi, reserved); diff != "" {
		t.Errorf("names of HAMi (-default +policy):\n%s", diff)
	}
}
