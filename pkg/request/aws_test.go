// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// wholeGPU is the share of a request for a whole GPU.
var wholeGPU = Share{Memory: Memory{PPM: Whole}, ComputePPM: Whole, Exclusive: true}

// partOf returns a share of ppm parts per million of a GPU.
func partOf(ppm uint32) Share { return Share{Memory: Memory{PPM: ppm}, ComputePPM: ppm} }

func TestAWS(t *testing.T) {
	const slots = "k8s.amazonaws.com/vgpu"
	run(t, DialectAWS, config.Default().Dialects, []test{
		{"the README's pod", asks{slots: "1"}, []Share{partOf(100_000)}, ""},
		{"several lie on one GPU", asks{slots: "7"}, []Share{partOf(700_000)}, ""},
		{"all of a GPU", asks{slots: "10"}, []Share{wholeGPU}, ""},
		{"more than a GPU", asks{slots: "25"}, []Share{wholeGPU, wholeGPU, partOf(500_000)}, ""},
		{"too many", asks{slots: "161"}, nil, slots + " is 161; allowed: 1 to 160 (slots)"},
	})

	most := config.Default().Dialects
	most.AWS.SlotsPerGPU = 48
	run(t, DialectAWS, most, []test{
		{"a 48th, rounded down", asks{slots: "1"}, []Share{partOf(20_833)}, ""},
		{"half", asks{slots: "24"}, []Share{partOf(500_000)}, ""},
	})
}
