// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

func TestJudge(t *testing.T) {
	const name = "nvidia.com/gpu"
	two := []string{"GPU-a", "GPU-b"}
	count := func(n int64) map[string]int64 { return map[string]int64{name: n} }
	none := map[string]int64{}
	tests := []struct {
		name     string
		before   claims
		capacity map[string]int64
		listed   listing
		want     claims
	}{
		{"nothing", nil, none, listing{}, claims{}},
		{"a plugin", nil, count(2), listing{name: two}, claims{name: two}},
		{"a plugin that the Node does not show yet", nil, none, listing{name: two}, claims{name: two}},
		{"a plugin that the Node shows without devices", claims{name: two}, count(0), listing{}, claims{}},
		{"the Node alone", nil, count(2), nil, claims{name: nil}},
		{"kubelet alone", nil, nil, listing{name: two}, claims{name: two}},
		{"neither answers", claims{name: two}, nil, nil, claims{name: two}},
		{"the plugin restarts", claims{name: two}, count(2), listing{}, claims{name: two}},
		{"the plugin restarts while the Node is unknown", claims{name: two}, nil, listing{}, claims{name: two}},
		{"the plugin is gone", claims{name: two}, none, listing{}, claims{}},
		{"the plugin is gone, kubelet does not answer", claims{name: two}, none, nil, claims{}},
		{"the plugin is gone, and a pod is left", claims{name: two}, none, listing{name: two[:1]}, claims{name: two[:1]}},
		{"a device is unhealthy", claims{name: two}, count(2), listing{name: two[:1]}, claims{name: two}},
		{"a device was unhealthy before the agent began", nil, count(2), listing{name: two[:1]}, claims{name: nil}},
		{"the plugin offers fewer devices", claims{name: two}, count(1), listing{name: two[:1]}, claims{name: two[:1]}},
		{"the devices of a claim become known", claims{name: nil}, count(2), listing{name: two}, claims{name: two}},
		{"the API server is away", claims{name: two}, nil, listing{name: two[:1]}, claims{name: two[:1]}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, judge(tt.before, tt.capacity, tt.listed)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhichGPUsAreClaimed(t *testing.T) {
	g := gpu.GPU{UUID: "GPU-11111111-0000", Index: 0, Minor: 3}
	mig := gpu.GPU{UUID: "MIG-1", Index: 1, Minor: 4, MIG: gpu.MIG{Parent: "GPU-44444444-0000"}}
	for id, want := range map[string][2]bool{
		"GPU-11111111-0000":    {true, false},
		"GPU-11111111-0000::7": {true, false}, // a part, by time-slicing
		"GPU-11111111-0000-7":  {true, false},
		"GPU-22222222-0000":    {false, false},
		"MIG-1":                {false, true},
		"MIG-2":                {false, false}, // another MIG device of the same GPU
		"GPU-44444444-0000":    {false, true},  // the MIG device's GPU
		"GPU-44444444-0000::1": {false, true},
		"nvidia3":              {true, false},
		"nvidia4/gi0":          {false, true},
		"nvidia3/vgpu1":        {true, false},
		"card0":                {true, true},
		"nvidia":               {true, true},
	} {
		c := claims{"r": {id}}
		if got := [2]bool{c.on(g) == "r", c.on(mig) == "r"}; got != want {
			t.Errorf("%s claims %v, want %v", id, got, want)
		}
	}
	if got := (claims{"b": nil, "a": {"GPU-2"}}).on(g); got != "b" {
		t.Errorf("a resource with unknown devices: %q", got)
	}
	if got := (claims{"b": nil, "a": nil}).on(g); got != "a" {
		t.Errorf("two resources: %q", got)
	}
}
