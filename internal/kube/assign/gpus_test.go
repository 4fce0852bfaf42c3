// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

func TestGPUs(t *testing.T) {
	const want = `[{"uuid":"GPU-a","index":0,"name":"NVIDIA \u003cH200\u003e","memoryBytes":150754820096,"healthy":true},` +
		`{"uuid":"MIG-b","index":1,"name":"","memoryBytes":1,"healthy":false,"mig":{"parent":"GPU-b","index":2,"instance":3,"compute":0}}]`
	node := []gpu.GPU{
		{UUID: "GPU-a", Index: 0, Name: "NVIDIA <H200>", MemoryBytes: 150754820096, Healthy: true},
		{UUID: "MIG-b", Index: 1, MemoryBytes: 1, MIG: gpu.MIG{Parent: "GPU-b", Index: 2, Instance: 3}},
	}
	text := FormatGPUs(node)
	if text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	got, err := ParseGPUs(text)
	if diff := cmp.Diff(node, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := ParseGPUs(FormatGPUs(nil)); err != nil || len(got) != 0 {
		t.Errorf("without GPUs: %v, %v", got, err)
	}
}

// TestOnlyHardwareAndHealthChangeTheGPUs checks that the annotation changes only with values that
// schedulers need.
func TestOnlyHardwareAndHealthChangeTheGPUs(t *testing.T) {
	before := gpu.GPU{UUID: "GPU-a", MemoryBytes: 1 << 34, Healthy: true}
	for name, tt := range map[string]struct {
		change  func(*gpu.GPU)
		changed bool
	}{
		"the health": {func(g *gpu.GPU) { g.Healthy = false }, true},
		"the memory": {func(g *gpu.GPU) { g.MemoryBytes++ }, true},
		"the index":  {func(g *gpu.GPU) { g.Index = 3 }, true},
		"the reason": {func(g *gpu.GPU) { g.Reason, g.RecoveryKnown = "XID 79", true }, false},
		"the minor":  {func(g *gpu.GPU) { g.Minor, g.PCIBusID = 3, "00000000:3B:00.0" }, false},
	} {
		after := before
		tt.change(&after)
		if changed := FormatGPUs([]gpu.GPU{before}) != FormatGPUs([]gpu.GPU{after}); changed != tt.changed {
			t.Errorf("%s changes the annotation: %t", name, changed)
		}
	}
}

func TestParseGPUsRefuses(t *testing.T) {
	for _, text := range []string{"", "GPU-a", `{"uuid":"GPU-a"}`, `["GPU-a"]`, `[{"memoryBytes":-1}]`, `[{"index":"0"}]`} {
		if got, err := ParseGPUs(text); err == nil || !strings.HasPrefix(err.Error(), "annotation nri-vgpu.io/gpus is not a list of GPUs: ") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
