// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const twoPools = `
[node]
slots_per_gpu = 8
[node.gpus]
exclude = ["0"]

[[pool]]
name = "inference"
node_selector = "gpu=t4, inference"
[pool.node]
slots_per_gpu = 20
[pool.placement]
policy = "spread"

[[pool]]
name = "shared"
node_selector = "gpu"
[pool.node.gpus]
exclude = []
[pool.compute]
policy = "share"
[[pool.dialects.metagpu.device_sharing]]
resource_name = "a.b/c"
`

func TestPools(t *testing.T) {
	f, err := ParseFile([]byte(twoPools))
	if err != nil {
		t.Fatal(err)
	}
	base := Default()
	base.Node.SlotsPerGPU, base.Node.GPUs.Exclude = 8, []string{"0"}
	inference, shared := base, base
	inference.Node.SlotsPerGPU, inference.Placement.Policy = 20, PlaceSpread
	shared.Node.GPUs.Exclude, shared.Compute.Policy = []string{}, ComputeShare
	shared.Dialects.MetaGPU.DeviceSharing = []DeviceSharing{defaultSharing("a.b/c")}
	for _, tt := range []struct {
		labels map[string]string
		pool   string
		want   Config
	}{
		{nil, "", base},
		{map[string]string{"GPU": "t4"}, "", base},
		{map[string]string{"gpu": "t4", "inference": ""}, "inference", inference},
		{map[string]string{"gpu": "t4"}, "shared", shared},
		{map[string]string{"gpu": "a100", "inference": "yes"}, "shared", shared},
	} {
		got, pool := f.For(tt.labels)
		if pool != tt.pool {
			t.Errorf("labels %v select pool %q, want %q", tt.labels, pool, tt.pool)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("labels %v: %s", tt.labels, diff)
		}
	}
	for name, want := range map[string]Config{"": base, "inference": inference, "shared": shared, "other": base} {
		if diff := cmp.Diff(want, f.Named(name)); diff != "" {
			t.Errorf("pool %q: %s", name, diff)
		}
	}
	total := strings.Replace(twoPools, "[[pool]]", "[dialects.native]\namounts = \"total\"\n[[pool]]", 1)
	if f, err := ParseFile([]byte(total)); err != nil || f.Named("shared").Dialects.Native.Amounts != AmountsTotal {
		t.Errorf("pools have not the amounts of all Nodes: %v, %+v", err, f.Named("shared").Dialects.Native)
	}
	if cfg, err := Parse([]byte(twoPools)); err != nil || cmp.Diff(base, cfg) != "" {
		t.Errorf("without labels: %v, %s", err, cmp.Diff(base, cfg))
	}
}

func TestPoolsRefuse(t *testing.T) {
	const valid = "name = \"a\"\nnode_selector = \"a\"\n"
	for document, want := range map[string][]string{
		"pool = 3": {"line 1: pool is a whole number; allowed: a list of tables"},
		"[[pool]]": {
			`line 1: pool[0].name is ""; allowed: lower-case letters`,
			`line 1: pool[0].node_selector is ""; allowed: labels of Nodes`,
		},
		"[[pool]]\nname = \"A\"\nnode_selector = \"a=b c\"": {
			`line 2: pool[0].name is "A"`, `line 3: pool[0].node_selector is "a=b c"`,
		},
		"[[pool]]\n" + valid + "[pool.paths]\nrun_dir = \"/run/x\"": {
			"line 4: pool[0].paths is no part of a pool; allowed here: name, node_selector, compute, detection, ",
		},
		"[[pool]]\n" + valid + "[pool.node]\nslots = 3\nslots_per_gpu = 0": {
			"line 5: pool[0].node.slots is unknown; allowed here: ", "line 6: pool[0].node.slots_per_gpu is 0; allowed: 1 to 1000",
		},
		"[[pool]]\n" + valid + "[pool.dialects.native]\namounts = \"total\"": {
			"line 5: pool[0].dialects.native.amounts is no part of a pool, because the key applies to all Nodes; required: set dialects.native.amounts outside the pools",
		},
		"[[pool]]\n" + valid + "[[pool]]\n" + valid: {`line 5: pool[1].name is "a" for the second time`},
		// A mistake outside the pools is reported once.
		"node.slots_per_gpu = 0\n[[pool]]\n" + valid: {"line 1: node.slots_per_gpu is 0"},
		// The policy of the mode fit does not know a pod's node.
		"scheduling.mode = \"fit\"\n[[pool]]\n" + valid + "[pool.dialects.native]\nnumber = \"nri-vgpu.io/other\"": {"line 2: pool[0].dialects differs from the dialects outside the pools; allowed with scheduling.mode = \"fit\": the same"},
		// Each value is valid, and their combination is not.
		"[[pool]]\n" + valid + "[pool.dialects.native]\nnumber = \"alnair/vgpu-memory\"": {"pool[0].dialects.alnair.memory is \"alnair/vgpu-memory\", which dialects.native.number also is"},
	} {
		_, err := ParseFile([]byte(document))
		var bad *Error
		if !errors.As(err, &bad) || len(bad.Problems) != len(want) {
			t.Errorf("%s: %v, want %d problems", document, err, len(want))
			continue
		}
		for i, p := range bad.Problems {
			if !strings.Contains(p.String(), want[i]) {
				t.Errorf("%s: problem %d is\n  %s\nwant\n  %s", document, i, p, want[i])
			}
		}
	}
}
