// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestMetaGPU(t *testing.T) {
	const shares = "cnvrg.io/metagpu"
	run(t, DialectMetaGPU, config.Default().Dialects, []test{
		{"the README's pod", asks{shares: "30"}, []Share{partOf(300_000)}, ""},
		{"half", asks{shares: "50"}, []Share{partOf(500_000)}, ""},
		{"a whole GPU", asks{shares: "100"}, []Share{wholeGPU}, ""},
		{"one and a half", asks{shares: "150"}, []Share{wholeGPU, partOf(500_000)}, ""},
		{"too many", asks{shares: "1601"}, nil, shares + " is 1601; allowed: 1 to 1600 (shares)"},
	})
}

func TestMetaGPUNames(t *testing.T) {
	cfg := config.Default().Dialects
	cfg.MetaGPU.AllowSpread = true
	cfg.MetaGPU.DeviceSharing = []config.DeviceSharing{
		{ResourceName: "cnvrg.io/old", SharesPerGPU: 4, UUIDs: []string{"GPU-1", "GPU-2"}},
		{ResourceName: "cnvrg.io/new", SharesPerGPU: 10, UUIDs: []string{"*"}},
	}
	old := []string{"GPU-1", "GPU-2"}
	wholeOld := Share{Memory: Memory{PPM: Whole}, ComputePPM: Whole, Exclusive: true, GPUs: old}
	partOld := Share{Memory: Memory{PPM: 250_000}, ComputePPM: 250_000, GPUs: old, SplitPPM: 250_000}
	partNew := Share{Memory: Memory{PPM: 300_000}, ComputePPM: 300_000, SplitPPM: 100_000}
	run(t, DialectMetaGPU, cfg, []test{
		{"confined to its GPUs", asks{"cnvrg.io/old": "1"}, []Share{partOld}, ""},
		{"more than one of them", asks{"cnvrg.io/old": "5"}, []Share{wholeOld, partOld}, ""},
		{"two names", asks{"cnvrg.io/new": "3", "cnvrg.io/old": "1"}, []Share{partOld, partNew}, ""},
		{"zero beside another", asks{"cnvrg.io/new": "3", "cnvrg.io/old": "0"}, nil, "cnvrg.io/old is 0; allowed: 1 to 64"},
		{"more GPUs than a container may hold", asks{"cnvrg.io/new": "160", "cnvrg.io/old": "1"}, nil,
			"the shares need 17 GPUs; allowed: at most 16"},
	})
}
