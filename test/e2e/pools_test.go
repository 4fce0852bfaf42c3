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
// values, and a running container keeps its part of a GPU.
func TestPools(t *testing.T) {
	t.Cleanup(func() { restartPatcher(t) })
	setConfig(t, func(before string) string {
		return before + fmt.Sprintf(`
[[pool]]
name = "few"
node_selector = "%[1]s=few"
[pool.node]
slots_per_gpu = 4

[[pool]]
name = "part"
node_selector = "%[1]s"
[pool.node]
slots_per_gpu = 6
[pool.node.gpus]
exclude = [%[2]q]
`, poolLabel, bed.UUIDs[1])
	})
	t.Cleanup(func() { label(t, poolLabel, "") })
	restartPatcher(t)
	var uuid string
	// The pod has one of the slots of the GPU that the pool "part" offers.
	for _, step := range []struct {
		label, pool string
		number      int64
		leftOut     int
	}{{"few", "few", 8, 0}, {"other", "part", 5, 1}, {"", "-", 19, 0}} {
		label(t, poolLabel, step.label)
		if err := bed.WaitCapacity(t.Context(), testbed.Number, step.number, patience); err != nil {
			t.Fatal(err)
		}
		prints(t, []string{"get", "nodes"}, fmt.Sprintf("%s  %s  %d  ", bed.Cluster.NodeName, step.pool, gpus-step.leftOut))
		if uuid == "" {
			create(t, testbed.Pod("pooled", filler("main", testbed.Limits{testbed.Memory: 1024})))
			uuid = checkFilled(t, "pooled", 1024*mib)
			continue
		}
		if now := checkFilled(t, "pooled", 1024*mib); now != uuid {
			t.Errorf("with label %q, the container is on %s instead of %s", step.label, now, uuid)
		}
	}
}
