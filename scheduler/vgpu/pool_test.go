// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"fmt"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// TestPools checks that the scheduler fits pods to a node by the configuration of the node's pool.
func TestPools(t *testing.T) {
	file, err := config.ParseFile([]byte("[node]\nslots_per_gpu = 3\n[[pool]]\nname = \"few\"\nnode_selector = \"slots=few\"\n[pool.node]\nslots_per_gpu = 1"))
	if err != nil {
		t.Fatal(err)
	}
	for labels, want := range map[string]int{"": 3, "few": 1} {
		p := newPlugin(&nominating{}, file.Config)
		p.nodes = file
		w := newWorld(1)
		w.cfg = file.Config
		m := w.member("node-0")
		m.gpus = m.gpus[:1]
		m.publish("node-0", file.Config)
		if labels != "" {
			node := m.info.Node().DeepCopy()
			node.Labels = map[string]string{"slots": labels}
			m.info.SetNode(node)
		}
		v := p.newView(m.info)
		if v.err != nil {
			t.Fatal(v.err)
		}
		placed := 0
		for ; placed < 5; placed++ {
			pod := one(fmt.Sprint("pod-", placed), 1, 0, 1, 0)
			if _, err := v.Ledger.Place(read(t, p, pod), pod.Spec.Containers[0].Name); err != nil {
				break
			}
		}
		if placed != want {
			t.Errorf("with label %q, %d containers fit on the GPU, want %d", labels, placed, want)
		}
	}
}
