// SPDX-License-Identifier: Apache-2.0

package config

import "testing"

func TestForeign(t *testing.T) {
	for resource, want := range map[string]bool{
		"nvidia.com/gpu": true, "nvidia.com/gpu.shared": true, "nvidia.com/mig-1g.5gb": true, "nvidia.com/mig-": true,
		"nvidia.com/gpumem": false, "nvidia.com/mig": false, "nri-vgpu.io/vgpu-memory": false, "cpu": false,
	} {
		if got := Default().Node.Foreign(resource); got != want {
			t.Errorf("%s: %t, want %t", resource, got, want)
		}
	}
	if (Node{}).Foreign("nvidia.com/gpu") {
		t.Error("without a list, a resource is foreign")
	}
}

func TestNodeGPUs(t *testing.T) {
	// The MIG device MIG-1 is on the physical GPU GPU-1.
	const uuid, parent, index, model = "MIG-1", "GPU-1", 3, "NVIDIA A100-SXM4-40GB"
	for _, tt := range []struct {
		include, exclude []string
		want             bool
	}{
		{[]string{"*"}, nil, true},
		{[]string{"*"}, []string{"GPU-1"}, false},
		{[]string{"*"}, []string{"GPU-2"}, true},
		{[]string{"GPU-2"}, nil, false},
		{[]string{"MIG-1"}, nil, true},
		{[]string{"GPU-1"}, []string{"MIG-1"}, false},
		{[]string{"MIG-2"}, nil, false},
		{[]string{"GPU-2", "GPU-1"}, nil, true},
		{[]string{"GPU-*"}, nil, false}, // a UUID has no pattern
		{[]string{"3"}, nil, true},
		{[]string{"*"}, []string{"3"}, false},
		{[]string{"13", "0"}, nil, false},
		{[]string{"03"}, nil, false},
		{[]string{"NVIDIA A100-SXM4-40GB"}, nil, true},
		{[]string{"nvidia a100*"}, nil, true},
		{[]string{"*A100*40GB"}, nil, true},
		{[]string{"NVIDIA A100"}, nil, false},
		{[]string{"NVIDIA.A100*"}, nil, false},
		{[]string{"*"}, []string{"*H100*"}, true},
		{[]string{"*A100*"}, []string{"3"}, false},
	} {
		if got := (NodeGPUs{tt.include, tt.exclude}).Has(index, model, uuid, parent); got != tt.want {
			t.Errorf("include %q, exclude %q: %t, want %t", tt.include, tt.exclude, got, tt.want)
		}
	}
}
