// SPDX-License-Identifier: Apache-2.0

package e2e

import "testing"

// slicesEnabled is the configuration in docs/how-to/migrate.md for users of NVIDIA's time-slicing
// with four replicas.
const slicesEnabled = `[node]
foreign_resources = []

[[dialects.metagpu.device_sharing]]
resource_name = "nvidia.com/gpu"
shares_per_gpu = 4
`

// TestTimeSlicingsExample checks that pods that request a replica of NVIDIA's time-slicing get a part
// of a GPU. According to the oracle, the pods are limited to the part.
func TestTimeSlicingsExample(t *testing.T) {
	t.Cleanup(func() { restartPatcher(t) })
	configure(t, slicesEnabled)
	restartPatcher(t)
	if err := bed.WaitCapacity(t.Context(), "nvidia.com/gpu", gpus*4, patience); err != nil {
		t.Fatal(err)
	}
	example := readme{of: "NVIDIA's time-slicing", file: "nvidia-time-slicing.yaml", part: gpuMemory / 4, percent: 25}
	pods := example.start(t)
	results := watch(t, pods)
	for i, pod := range pods {
		example.judge(t, pod, results[i])
	}
}
