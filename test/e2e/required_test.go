// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// requirePlugin is the text that docs/how-to/install.md adds to containerd's configuration.
const requirePlugin = `
[plugins.'io.containerd.nri.v1.nri'.default_validator]
  enable = true
  required_plugins = ["nri-vgpu"]
  tolerate_missing_plugins_annotation = "nri-vgpu.io/tolerate-missing"
`

// configureContainerd adds a text to containerd's configuration until the test ends.
func configureContainerd(t *testing.T, more string) {
	t.Helper()
	path := filepath.Join(bed.Cluster.Root(), "etc/containerd/config.toml")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Error(err)
		}
		if err := bed.Cluster.Restart(ctx, "containerd"); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { set(context.Background(), string(before)) })
	set(t.Context(), string(before)+more)
}

// TestRequiredPlugin lets the runtime require our plugin. While the agent is down, no container
// of a tenant starts, and the agent itself restarts.
func TestRequiredPlugin(t *testing.T) {
	configureContainerd(t, requirePlugin)
	check := untouched(t)
	if err := bed.StopAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	away := true
	start := func(ctx context.Context) {
		if away {
			away = false
			if err := bed.StartAgent(ctx, patience); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(func() { start(context.Background()) })

	create(t, testbed.Pod("waits", cudaContainer(nil)))
	refused, err := bed.WaitPod(t.Context(), "waits", "refused", patience, func(pod *corev1.Pod) bool {
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].State.Waiting != nil && status[0].State.Waiting.Reason == "CreateContainerError"
	})
	if err != nil {
		t.Fatal(err)
	}
	if message := refused.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(message, "nri-vgpu") {
		t.Errorf("the refusal does not name the plugin: %q", message)
	}
	tolerating := testbed.Pod("tolerates", testbed.Container("main", nil, "env"))
	tolerating.Annotations = map[string]string{"nri-vgpu.io/tolerate-missing": "true"}
	mayTolerate(t, tolerating)
	create(t, tolerating)
	if _, err := bed.WaitSucceeded(t.Context(), "tolerates", patience); err != nil {
		t.Error(err)
	}
	check()

	start(t.Context())
	started(t, "waits")
	if _, err := bed.WaitSucceeded(t.Context(), "waits", patience); err != nil {
		t.Fatal(err)
	}
	var info testbed.Info
	if err := bed.WaitResult(t.Context(), "waits", "main", patience, &info); err != nil {
		t.Fatal(err)
	}
	if len(info.CUDA.Devices) != 0 {
		t.Errorf("a pod that requests no GPU sees %d", len(info.CUDA.Devices))
	}
	check()
}

// mayTolerate allows pods of the default namespace to run without the plugin until the test ends.
// In other namespaces no account may set this annotation. The API server reads the namespace's
// labels from a cache, so mayTolerate waits until the API server would admit the pod.
func mayTolerate(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	set := func(ctx context.Context, value string) {
		t.Helper()
		patch := `{"metadata":{"labels":{"nri-vgpu.io/may-tolerate-missing":` + value + `}}}`
		_, err := bed.Client.CoreV1().Namespaces().Patch(ctx, metav1.NamespaceDefault, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { set(context.Background(), "null") })
	set(t.Context(), `"true"`)
	eventually.Holds(t, patience, "the API server admits pods that tolerate a missing plugin", func() bool {
		_, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil
	})
}
