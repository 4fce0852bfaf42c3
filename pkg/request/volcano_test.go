// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestVolcano(t *testing.T) {
	const (
		number  = "volcano.sh/vgpu-number"
		memory  = "volcano.sh/vgpu-memory"
		percent = "volcano.sh/vgpu-memory-percentage"
		cores   = "volcano.sh/vgpu-cores"
	)
	readme := Share{Memory: Memory{Bytes: 3000 * MiB}, ComputePPM: 500_000, Slots: 1}
	run(t, DialectVolcano, config.Default().Dialects, []test{
		{"the README's pod", asks{number: "2", memory: "3000", cores: "50"}, []Share{readme, readme}, ""},
		{"number alone", asks{number: "1"}, []Share{{Memory: Memory{PPM: Whole}, Slots: 1}}, ""},
		{"memory alone", asks{memory: "1"}, []Share{{Memory: Memory{Bytes: MiB}, Slots: 1}}, ""},
		{"percent of the memory", asks{number: "1", percent: "25"}, []Share{{Memory: Memory{PPM: 250_000}, Slots: 1}}, ""},
		{"zero percent means nothing", asks{number: "1", percent: "0"}, []Share{{Memory: Memory{PPM: Whole}, Slots: 1}}, ""},
		{"all of the memory", asks{percent: "100"}, []Share{{Memory: Memory{PPM: Whole}, Slots: 1}}, ""},
		{"99 cores", asks{cores: "99"}, []Share{{Memory: Memory{PPM: Whole}, ComputePPM: 990_000, Slots: 1}}, ""},
		{"MiB before percent", asks{memory: "1", percent: "25"}, []Share{{Memory: Memory{Bytes: MiB}, Slots: 1}}, ""},
		{"100 cores", asks{number: "1", memory: "1", cores: "100"},
			[]Share{{Memory: Memory{Bytes: MiB}, ComputePPM: Whole, Slots: 1, Exclusive: true}}, ""},
		{"zero memory and cores have no effect", asks{number: "1", memory: "0", cores: "0"},
			[]Share{{Memory: Memory{PPM: Whole}, Slots: 1}}, ""},
		{"number zero", asks{number: "0", memory: "1"}, nil, number + " is 0; allowed: 1 to 16"},
		{"too many cores", asks{number: "1", cores: "150"}, nil, cores + " is 150; allowed: 0 to 100 (percent of the time of each GPU)"},
		{"too much memory", asks{memory: "16777217"}, nil, memory + " is 16777217; allowed"},
		{"too many percent", asks{percent: "101"}, nil, percent + " is 101; allowed: 0 to 100"},
	})
}

// TestVolcanoUnderOtherNames checks that a configuration replaces the names of the resources.
func TestVolcanoUnderOtherNames(t *testing.T) {
	const number, memory, percent, cores = "example.com/gpus", "example.com/mib", "example.com/percent", "example.com/cores"
	dialects := config.Default().Dialects
	v := &dialects.Volcano
	v.Number, v.Memory, v.MemoryPercentage, v.Cores = number, memory, percent, cores
	part := Share{Memory: Memory{Bytes: 3000 * MiB}, ComputePPM: 300_000, Slots: 1}
	run(t, DialectVolcano, dialects, []test{
		{"GPUs, memory and cores", asks{number: "2", memory: "3000", cores: "30"}, []Share{part, part}, ""},
		{"percent of the memory", asks{percent: "50"}, []Share{{Memory: Memory{PPM: 500_000}, Slots: 1}}, ""},
	})
}
