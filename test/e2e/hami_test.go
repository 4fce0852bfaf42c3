// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// hamiEnabled is the configuration in docs/how-to/migrate.md for users of HAMi.
const hamiEnabled = "[node]\nforeign_resources = []\n\n[dialects.hami]\nenabled = true\n"

// hamiExamples are manifests with the keys of HAMi's examples for NVIDIA GPUs, in testdata/hami. Pods of
// one element run at the same time. A percent of 0 stands for no limit on time.
var hamiExamples = [][]readme{
	{{of: "memory-and-cores", part: 3000 * mib, percent: 30}},
	{{of: "memory", part: 3000 * mib}},
	{{of: "fraction", part: gpuMemory / 2, percent: 30}},
	{{of: "exclusive", part: gpuMemory, percent: 100}},
	{{of: "gpus", part: gpuMemory, percent: 100}},
	{{of: "sharing-first", part: gpuMemory * 40 / 100, percent: 60}, {of: "sharing-second", part: gpuMemory * 60 / 100, percent: 40}},
	{{of: "use-type", part: 2000 * mib, percent: 30}},
	{{of: "nouse-type", part: 2000 * mib, percent: 30}},
	{{of: "use-uuid", part: 2000 * mib, percent: 30}},
	{{of: "nouse-uuid", part: 2000 * mib, percent: 30}},
	{{of: "policy", part: 2000 * mib, percent: 30}},
}

// TestHAMisExamples checks that pods with HAMi's keys are limited, according to the oracle, and run on the
// GPUs that their annotations allow. When the dialect is off again, pods of other dialects run at once.
func TestHAMisExamples(t *testing.T) {
	t.Cleanup(func() { restartPatcher(t) })
	configure(t, hamiEnabled)
	restartPatcher(t)
	if err := bed.WaitCapacity(t.Context(), "nvidia.com/gpu", gpus*10, patience); err != nil {
		t.Fatal(err)
	}
	for _, examples := range hamiExamples {
		t.Run(examples[0].of, func(t *testing.T) {
			pods := make([]*corev1.Pod, len(examples))
			for i, r := range examples {
				pods[i] = hamiPod(t, r.of)
				create(t, pods[i])
			}
			for i, r := range examples {
				pods[i] = running(t, r.of)
			}
			results := watch(t, pods)
			for i, r := range examples {
				r.judge(t, pods[i], results[i])
			}
			checkHAMisGPUs(t, pods)
		})
	}
	t.Run("off again", func(t *testing.T) {
		configure(t, "")
		restartPatcher(t)
		create(t, testbed.Pod("native", filler("main", testbed.Limits{testbed.Memory: 1024})))
		// The agent withholds the GPUs of another plugin for longer.
		if _, err := bed.WaitRunning(t.Context(), "native", time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// checkHAMisGPUs checks that the pods share one GPU, or have the GPU that the pod's annotation chooses.
func checkHAMisGPUs(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	uuid := given(t, pods[0])[0].UUID
	for _, pod := range pods[1:] {
		if got := given(t, pod)[0].UUID; got != uuid {
			t.Errorf("%s is on GPU %s, and %s on %s", pods[0].Name, uuid, pod.Name, got)
		}
	}
	if strings.HasSuffix(pods[0].Name, "-uuid") && uuid != bed.UUIDs[1] {
		t.Errorf("%s is on GPU %s, want %s", pods[0].Name, uuid, bed.UUIDs[1])
	}
}

// hamiPod reads an example.
func hamiPod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "hami", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("FIRST", bed.UUIDs[0], "SECOND", bed.UUIDs[1]).Replace(string(raw))
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}
