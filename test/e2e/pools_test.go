// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// poolLabel is a label of Nodes that selects a pool.
const poolLabel = "example.com/pool"

// TestPools moves a node between two pools and out of them. Agent and patcher apply each pool's
// values: slots, reserved memory, policy, and GPUs by model and index. A running container keeps its
// part of a GPU.
func TestPools(t *testing.T) {
	t.Cleanup(func() { restartPatcher(t) })
	setConfig(t, func(before string) string {
		return before + fmt.Sprintf(`
[[pool]]
name = "few"
node_selector = "%[1]s=few"
[pool.node]
slots_per_gpu = 4
reserved_memory_mib = 2048
[pool.node.gpus]
include = ["*H200*"]
[pool.placement]
policy = "spread"

[[pool]]
name = "part"
node_selector = "%[1]s"
[pool.node]
slots_per_gpu = 6
[pool.node.gpus]
exclude = ["1"]
`, poolLabel)
	})
	t.Cleanup(func() { label(t, poolLabel, "") })
	restartPatcher(t)
	var uuid string
	const gpuMiB = gpuMemory / mib
	// The pod has one of the slots of the GPU that the pool "part" offers.
	for _, step := range []struct {
		label, pool    string
		number, memory int64
		leftOut        int
	}{{"few", "few", 8, gpus * (gpuMiB - 2048), 0}, {"other", "part", 5, gpuMiB, 1}, {"", "-", 19, gpus * gpuMiB, 0}} {
		label(t, poolLabel, step.label)
		for name, want := range map[string]int64{testbed.Number: step.number, testbed.Memory: step.memory} {
			if err := bed.WaitCapacity(t.Context(), name, want, patience); err != nil {
				t.Fatal(err)
			}
		}
		prints(t, []string{"get", "nodes"}, fmt.Sprintf("%s  %s  %d  ", bed.Cluster.NodeName, step.pool, gpus-step.leftOut))
		if uuid == "" {
			create(t, testbed.Pod("pooled", filler("main", testbed.Limits{testbed.Memory: 1024})))
			uuid = checkFilled(t, "pooled", 1024*mib)
			create(t, testbed.Pod("second", filler("main", testbed.Limits{testbed.Memory: 1024})))
			if other := checkFilled(t, "second", 1024*mib); other == uuid {
				t.Errorf("with policy spread, both containers are on %s", uuid)
			}
			if err := bed.Delete(t.Context(), "second"); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if now := checkFilled(t, "pooled", 1024*mib); now != uuid {
			t.Errorf("with label %q, the container is on %s instead of %s", step.label, now, uuid)
		}
	}
}
