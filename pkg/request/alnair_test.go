// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestAlnair(t *testing.T) {
	const memory, compute = "alnair/vgpu-memory", "alnair/vgpu-compute"
	run(t, DialectAlnair, config.Default().Dialects, []test{
		{"the README's pod", asks{memory: "2", compute: "50"}, []Share{{Memory: Memory{GiB: 2}, ComputePPM: 500_000}}, ""},
		{"memory alone", asks{memory: "2"}, []Share{{Memory: Memory{GiB: 2}}}, ""},
		{"compute alone", asks{compute: "50"}, []Share{{Memory: Memory{Common: true}, ComputePPM: 500_000}}, ""},
		{"memory zero", asks{memory: "0", compute: "50"}, nil, memory + " is 0; allowed: 1 to 16384 (GiB of one GPU)"},
		{"more than one GPU", asks{compute: "101"}, nil, compute + " is 101; allowed: 1 to 100 (percent of one GPU)"},
		{"too much memory", asks{memory: "16385"}, nil, memory + " is 16385; allowed"},
	})
}
