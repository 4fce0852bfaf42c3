// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the table of privileges in docs/reference/privileges.md")

// privilege is a privilege of a pod or an account that a restricted pod does not have, with the
// reason for the privilege.
type privilege struct{ has, because, test string }

// byRights and byPrivileges name the tests that remove privileges. "make e2e-privileges" runs both
// tests.
const (
	byRights     = "`TestEachRightIsNeeded`"
	byPrivileges = "`TestEachPrivilegeIsNeeded`"
)

// privileges lists all privileges in the manifests.
var privileges = []privilege{
	{"nri-vgpu: get pods", "the runtime may create a container before the watch has reported its pod", byRights},
	{"nri-vgpu: list pods", "the agent reads the node's pods at its start; RBAC cannot restrict this right to a node", byRights},
	{"nri-vgpu: watch pods", "the agent follows new and ending pods", byRights},
	{"nri-vgpu: create events", "the agent reports refusals and findings as Events on Pods and its Node; a policy allows only Events of its node in its own name", byRights},
	{"nri-vgpu: patch events", "the agent increments the count of a repeated Event", byRights},
	{"nri-vgpu: create pods/eviction", "the agent evicts a pod that fits no GPU of the node (`placement.evict_after`)", byRights},
	{"nri-vgpu: patch pods/status", "the agent writes the result of an assignment by Volcano's scheduler, the node's choice for nri-vgpu-scheduler, and the sizes of running containers; a policy allows only these annotations and two conditions", byRights},
	{"nri-vgpu: list nodes", "the agent reads the capacity of its Node, which counts the GPUs of other device plugins", byRights},
	{"nri-vgpu: watch nodes", "the agent follows changes of this capacity", byRights},
	{"extended-resource-patcher: list nodes", "the patcher reads its Node, by field selector", byRights},
	{"extended-resource-patcher: watch nodes", "the patcher corrects changes of its Node at once", byRights},
	{"extended-resource-patcher: patch nodes/status", "the patcher writes the resources; a policy allows only resources of the patcher's Node", byRights},
	{"nri-vgpu-cleanup: delete daemonsets nri-vgpu", "the Job ends agents before the cleanup of their nodes", byRights},
	{"nri-vgpu-cleanup: delete daemonsets extended-resource-patcher", "the Job ends patchers before the cleanup of their Nodes", byRights},
	{"nri-vgpu-cleanup: get daemonsets nri-vgpu-cleanup", "helm waits until the cleanup of every node has ended", byRights},
	{"nri-vgpu-cleanup: list pods", "the Job lists the nodes whose cleanup has not ended", byRights},
	{"nri-vgpu-cleanup: list nodes", "the Job does not wait for nodes that are not Ready", byRights},

	{"nri-vgpu: hostNetwork", "the agent must answer before the pod network exists: if the runtime requires the plugin, CNI's pods wait for the agent; kubelet probes the agent at the node's loopback address", byPrivileges},
	{"nri-vgpu: hostPID", "before a container starts, the agent checks nri-vgpu's paths in the root of the container's first process; the MPS daemon outlives the agent", byPrivileges},
	{"nri-vgpu: token", "the agent queries the API server; the init container also gets the token", byPrivileges},
	{"nri-vgpu/install: root", "only root may write to the directories of the installed files", byPrivileges},
	{"nri-vgpu/install: /opt/nri-vgpu, writable", "the init container writes a version's libraries for containers", byPrivileges},
	{"nri-vgpu/install: /opt/nri/plugins, writable", "the init container writes the guard, which the runtime starts as root", byPrivileges},
	{"nri-vgpu/agent: privileged", "the agent mounts the file systems of usage pages, and the mounts propagate to the node. The API server allows this propagation (`Bidirectional`) only to privileged containers; without a device plugin, the device cgroup lets only privileged containers open a GPU's device node", byPrivileges},
	{"nri-vgpu/agent: root", "root owns the files that the agent writes and the runtime's socket", byPrivileges},
	{"nri-vgpu/agent: /run/nri-vgpu, writable", "the agent writes node.json and the containers' limits and usage pages, and mounts the file systems of usage pages in this directory", byPrivileges},
	{"nri-vgpu/agent: /var/lib/nri-vgpu, writable", "the agent stores the pods that request GPUs; after a reboot, the guard reads this list. The agent also stores the size of a CUDA context on each GPU", byPrivileges},
	{"nri-vgpu/agent: /opt/nri-vgpu, writable", "the agent writes copies of the libraries for containers, which export the names of the node's driver", byPrivileges},
	{"nri-vgpu/agent: /var/run/nri, writable", "the agent connects to the runtime's socket; the pod mounts the directory, because a restarted runtime creates a new socket", byPrivileges},
	{"nri-vgpu/agent: /etc/cdi, read-only", "the agent reads the CDI specs that name the GPUs", byPrivileges},
	{"nri-vgpu/agent: /var/run/cdi, writable", "the agent writes nri-vgpu's CDI spec", byPrivileges},
	{"nri-vgpu/agent: /var/lib/kubelet/pod-resources, read-only", "the agent asks kubelet which GPUs other device plugins offer; the pod mounts the directory, because a restarted kubelet creates a new socket", byPrivileges},
	{"nri-vgpu/agent: /dev, writable", "the agent opens the GPUs' device nodes, including later device nodes", byPrivileges},
	{"nri-vgpu/agent: /host, read-only", "the agent reads the driver's libraries, at every path of the node and of a driver container that starts later", byPrivileges},
	{"extended-resource-patcher: token", "the patcher queries the API server", byPrivileges},
	{"extended-resource-patcher/patcher: /run/nri-vgpu, read-only", "the patcher reads node.json", byPrivileges},

	{"nri-vgpu-cleanup: token", "`node-object` removes the patchers' fields from the Node; the other containers also get the token", byPrivileges},
	{"nri-vgpu-cleanup/node: privileged", "the container unmounts the file systems of usage pages, and ends an MPS daemon in the node's namespaces; capabilities for these actions are not enough if AppArmor or SELinux confines unprivileged containers", byPrivileges},
	{"nri-vgpu-cleanup/node: root", "root owns the removed files", byPrivileges},
	{"nri-vgpu-cleanup/node: /host, writable", "the container removes the installed files, and reads the running pods from the node's /proc", byPrivileges},
	{"nri-vgpu-cleanup-begin: token", "the Job deletes the DaemonSets", byPrivileges},
	{"nri-vgpu-cleanup-await: token", "the Job waits for the nodes", byPrivileges},
}

// object contains the fields of every kind of object that carry privileges.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Rules    []rbacv1.PolicyRule
	Spec     struct{ Template corev1.PodTemplateSpec }
}

// given lists the privileges in a manifest.
func given(t *testing.T, file string) []string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		var o object
		if err := yaml.Unmarshal(document, &o); err != nil {
			continue // a kind whose spec has another template
		}
		switch o.Kind {
		case "Role", "ClusterRole":
			all = append(all, ofRules(o.Metadata.Name, o.Rules)...)
		case "DaemonSet", "Job":
			all = append(all, ofPod(o.Metadata.Name, o.Spec.Template.Spec)...)
		}
	}
	return all
}

func ofRules(account string, rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, rule := range rules {
		names := rule.ResourceNames
		if names == nil {
			names = []string{""}
		}
		for _, resource := range slices.Concat(rule.Resources, rule.NonResourceURLs) {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					all = append(all, strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", account, verb, resource, name)))
				}
			}
		}
	}
	return all
}

func ofPod(name string, pod corev1.PodSpec) []string {
	var all []string
	for what, has := range map[string]bool{
		"hostNetwork": pod.HostNetwork, "hostPID": pod.HostPID, "hostIPC": pod.HostIPC,
		"token": pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken,
	} {
		if has {
			all = append(all, name+": "+what)
		}
	}
	ofHost := map[string]bool{}
	for _, volume := range pod.Volumes {
		ofHost[volume.Name] = volume.ConfigMap == nil
	}
	for _, container := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, what := range ofContainer(pod, container) {
			all = append(all, name+"/"+container.Name+": "+what)
		}
		for _, mount := range container.VolumeMounts {
			way := "writable"
			if mount.ReadOnly {
				way = "read-only"
			}
			if ofHost[mount.Name] {
				all = append(all, fmt.Sprintf("%s/%s: %s, %s", name, container.Name, mount.MountPath, way))
			}
		}
	}
	return all
}

// ofContainer lists the missing restrictions of a container. A privileged container has all
// capabilities and no seccomp profile.
func ofContainer(pod corev1.PodSpec, container corev1.Container) []string {
	own, ofPod := container.SecurityContext, pod.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	if ofPod == nil {
		ofPod = &corev1.PodSecurityContext{}
	}
	is := func(values ...*bool) bool {
		i := slices.IndexFunc(values, func(v *bool) bool { return v != nil })
		return i >= 0 && *values[i]
	}
	profile := own.SeccompProfile
	if profile == nil {
		profile = ofPod.SeccompProfile
	}
	privileged := is(own.Privileged)
	var all []string
	add := func(what string, has bool) {
		if has {
			all = append(all, what)
		}
	}
	add("privileged", privileged)
	add("root", !is(own.RunAsNonRoot, ofPod.RunAsNonRoot))
	add("a root file system that it can write", !is(own.ReadOnlyRootFilesystem))
	if !privileged {
		add("more privileges by set-user-ID programs", own.AllowPrivilegeEscalation == nil || *own.AllowPrivilegeEscalation)
		add("no seccomp profile", profile == nil || profile.Type == corev1.SeccompProfileTypeUnconfined)
		add("capabilities", own.Capabilities == nil || !slices.Equal(own.Capabilities.Drop, []corev1.Capability{"ALL"}))
	}
	if own.Capabilities != nil {
		for _, c := range own.Capabilities.Add {
			all = append(all, "CAP_"+string(c))
		}
	}
	return all
}

// TestEachPrivilegeIsInTheTable checks that the table justifies every privilege, and lists no other
// privilege.
func TestEachPrivilegeIsInTheTable(t *testing.T) {
	var got, want []string
	for _, file := range []string{"nri-vgpu.yaml", "uninstall.yaml", "render/testdata/default.golden"} {
		got = append(got, given(t, file)...)
	}
	for _, p := range privileges {
		want = append(want, p.has)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("privileges (-table +manifests):\n%s", diff)
	}
}

var table = regexp.MustCompile(`(?s)(<!-- privileges: begin, written by a test -->\n).*?(<!-- privileges: end -->)`)

// TestPrivilegesAreDocumented checks that docs/reference/privileges.md contains the table.
func TestPrivilegesAreDocumented(t *testing.T) {
	const path = "../docs/reference/privileges.md"
	text := read(t, path)
	var rows strings.Builder
	rows.WriteString("| privilege | reason | test |\n|---|---|---|\n")
	for _, p := range privileges {
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", p.has, p.because, p.test)
	}
	want := table.ReplaceAllString(text, "${1}"+rows.String()+"${2}")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, text); diff != "" || !table.MatchString(text) {
		t.Errorf("the table is not current; go test ./deploy -update (-want +file):\n%s", diff)
	}
}
