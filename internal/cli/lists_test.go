// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

// viewer runs kubectl vgpu as a user who may only read nri-vgpu-view. The view knows a container in
// each of two namespaces. pods is the answer to a list of the pods of the namespace "default", or "" if
// the user may not list pods.
func viewer(t *testing.T, pods, line string) (string, error) {
	t.Helper()
	s, url := startAPIServer(t)
	s.answers = map[string]string{
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": `{"status":{"allowed":false}}`,
		"/api/v1/namespaces/nri-vgpu-system/services/https:nri-vgpu-view:https/proxy/view/fleet": `{"overviews": [{"node": "n1", "gpus": [], "processes": [],
			"containers": [{"namespace": "default", "pod": "train", "container": "main", "gpus": []}, {"namespace": "shop", "pod": "serve", "container": "main", "gpus": []}]}]}`,
	}
	if pods != "" {
		s.answers["/api/v1/namespaces/default/pods"] = pods
	}
	return output(t, kubectlVgpu(), append(strings.Fields(line), "--kubeconfig", kubeconfig(t), "--server", url)...)
}

// TestListsWithoutRightsOnPods checks that readers of nri-vgpu-view may list containers without a right
// on pods.
func TestListsWithoutRightsOnPods(t *testing.T) {
	for line, want := range map[string]string{"get pods": "train", "get pods train": "train", "get pods -n shop": "serve", "get pods -A": "serve", "ps train": "No process"} {
		if got, err := viewer(t, "", line); err != nil || !strings.Contains(got, want) {
			t.Errorf("kubectl vgpu %s: %q, %v", line, got, err)
		}
	}
}

// TestUnknownPods checks that a name is an error if no pod of this name has a GPU or waits for a GPU.
func TestUnknownPods(t *testing.T) {
	const pods = `{"kind": "PodList", "apiVersion": "v1", "items": [
		{"metadata": {"namespace": "default", "name": "wait"}, "spec": {"containers": [{"name": "main", "resources": {"limits": {"nri-vgpu.io/vgpu-memory": "1024"}}}]}, "status": {"phase": "Pending"}},
		{"metadata": {"namespace": "default", "name": "web"}, "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Running"}}]}`
	for line, want := range map[string]string{
		"get pods train": "", "get pods wait": "", "ps train": "", "ps wait": "",
		"get pods web": "of pod web in namespace default: ", "get pods train nonsense": "of pod nonsense in ", "ps nonsense": "of pod nonsense in ",
		"get pods serve": "of pod serve in ",
	} {
		got, err := viewer(t, pods, line)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("kubectl vgpu %s: %v, want %q", line, err, want)
		}
		if strings.HasPrefix(line, "get pods train") && !strings.Contains(got, "train") {
			t.Errorf("kubectl vgpu %s does not list train: %q", line, got)
		}
	}
}

// TestNodesHaveNoNamespace checks that nodes count the containers of all namespaces, and have no
// selector of pods and no order by use.
func TestNodesHaveNoNamespace(t *testing.T) {
	for _, line := range []string{"get nodes --no-headers", "get nodes --no-headers -n shop", "get nodes --no-headers -A"} {
		got, err := viewer(t, "", line)
		if words := strings.Fields(got); err != nil || len(words) != 7 || words[3] != "2" {
			t.Errorf("kubectl vgpu %s: %q, %v", line, got, err)
		}
	}
	for _, line := range []string{"get nodes -l app=train", "get gpus -l app=train", "get nodes --sort-by memory"} {
		if _, err := viewer(t, "", line); err == nil || !strings.Contains(err.Error(), "unknown ") {
			t.Errorf("kubectl vgpu %s: %v", line, err)
		}
	}
}
