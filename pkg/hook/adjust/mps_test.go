// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"slices"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	gpuA = "GPU-a"
	gpuB = "GPU-b"
	mib  = 1 << 20
)

func TestPercentage(t *testing.T) {
	tests := []struct {
		name, env, cores string
		want             string
		set              bool
	}{
		{"none requested", "", "", "", false},
		{"as requested", "", "25", "25", true},
		{"the user wants less", MPSPercentage + "=12.5", "25", "12.5", false},
		{"the user wants as much", MPSPercentage + "=25", "25", "25", false},
		{"the user wants hardly anything", MPSPercentage + "=0.5", "25", "0.5", false},
		{"the user wants a little more", MPSPercentage + "=25.1", "25", "25", true},
		{"the user wants more", MPSPercentage + "=90", "25", "25", true},
		{"the user wants nonsense", MPSPercentage + "=all", "25", "25", true},
		{"the user wants none", MPSPercentage + "=0", "25", "25", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Container{Name: "c"}
			if tt.env != "" {
				c.Env = []string{tt.env}
			}
			given := Assignment{Allocation: placement.Allocation{Devices: []placement.Device{{UUID: gpuA, MPS: true}}}}
			if tt.cores != "" {
				given.Devices[0].ComputePPM = 250_000
			}
			var a Adjustment
			a.joinMPS(c, Rules{}, given)
			k := slices.IndexFunc(a.Env, func(v Variable) bool { return v.Name == MPSPercentage })
			if set := k >= 0; set != tt.set {
				t.Fatalf("the variable is set: %t, want %t", set, tt.set)
			}
			if tt.set && a.Env[k].Value != tt.want {
				t.Errorf("got %s, want %s", a.Env[k].Value, tt.want)
			}
		})
	}
}

func TestSeveralGPUsByMPS(t *testing.T) {
	devices := []placement.Device{
		{UUID: gpuA, MPS: true, MemoryBytes: 1000 * mib, ComputePPM: 500_000},
		{UUID: gpuB, MPS: true, MemoryBytes: 2000*mib + 1},
	}
	if got := memoryLimits(devices); got != "0=2001M,1=2001M" {
		t.Errorf("limits on memory: %s", got)
	}
	if got := leastPart(devices); got != 500_000 {
		t.Errorf("the part of the GPUs is %d ppm", got)
	}
}
