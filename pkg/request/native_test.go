// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestNative(t *testing.T) {
	const number, memory, cores = "nri-vgpu.io/vgpu-number", "nri-vgpu.io/vgpu-memory", "nri-vgpu.io/vgpu-cores"
	const percent = "nri-vgpu.io/vgpu-memory-percentage"
	whole := Memory{PPM: Whole}
	run(t, DialectNative, config.Default().Dialects, []test{
		{"memory alone", asks{memory: "4096"}, []Share{{Memory: Memory{Bytes: 4096 * MiB}, Slots: 1}}, ""},
		{"memory with a suffix", asks{memory: "4Ki"}, []Share{{Memory: Memory{Bytes: 4096 * MiB}, Slots: 1}}, ""},
		{"percent of the memory", asks{percent: "25"}, []Share{{Memory: Memory{PPM: 250_000}, Slots: 1}}, ""},
		{"percent of the memory, and cores", asks{percent: "25", cores: "30"}, []Share{{Memory: Memory{PPM: 250_000}, ComputePPM: 300_000, Slots: 1}}, ""},
		{"cores alone have as much memory", asks{cores: "30"}, []Share{{Memory: Memory{PPM: 300_000}, ComputePPM: 300_000, Slots: 1}}, ""},
		{"number and cores", asks{number: "1", cores: "30"}, []Share{{Memory: Memory{PPM: 300_000}, ComputePPM: 300_000, Slots: 1}}, ""},
		{"all cores have all memory", asks{cores: "100"}, []Share{{Memory: whole, ComputePPM: Whole, Slots: 1}}, ""},
		{"number alone", asks{number: "2"}, []Share{{Memory: whole, Slots: 1}, {Memory: whole, Slots: 1}}, ""},
		{"all three", asks{number: "1", memory: "1", cores: "100"},
			[]Share{{Memory: Memory{Bytes: MiB}, ComputePPM: Whole, Slots: 1}}, ""},
		{"number zero", asks{number: "0", memory: "1"}, nil, number + " is 0; allowed: 1 to 16 (GPUs)"},
		{"memory zero", asks{number: "1", memory: "0"}, nil, memory + " is 0; allowed: 1 to 16777216 (MiB of each GPU)"},
		{"percent zero", asks{number: "1", percent: "0"}, nil, percent + " is 0; allowed: 1 to 100 (percent of the memory of each GPU)"},
		{"too many percent", asks{percent: "101"}, nil, percent + " is 101; allowed: 1 to 100"},
		{"MiB and percent", asks{memory: "1", percent: "1"}, nil, "names both " + memory + " and " + percent + "; allowed: one of them"},
		{"cores zero", asks{memory: "1", cores: "0"}, nil, cores + " is 0; allowed: 1 to 100"},
		{"too many GPUs", asks{number: "17"}, nil, number + " is 17; allowed: 1 to 16"},
		{"bytes taken for MiB", asks{memory: "4Gi"}, nil, memory + " is 4294967296; allowed"},
		{"more than all cores", asks{cores: "101"}, nil, cores + " is 101; allowed: 1 to 100"},
	})

	all := config.Default().Dialects
	all.Native.MemoryOfCores = config.MemoryAll
	run(t, DialectNative, all, []test{
		{"cores alone have all memory, if configured", asks{cores: "30"}, []Share{{Memory: whole, ComputePPM: 300_000, Slots: 1}}, ""},
		{"cores and memory", asks{cores: "30", memory: "1"}, []Share{{Memory: Memory{Bytes: MiB}, ComputePPM: 300_000, Slots: 1}}, ""},
	})

	total := config.Default().Dialects
	total.Native.Amounts = config.AmountsTotal
	gib := Share{Memory: Memory{Bytes: 1024 * MiB}, ComputePPM: 150_000, Slots: 1}
	third := Share{Memory: Memory{PPM: 333_333}, ComputePPM: 333_333, Slots: 1}
	run(t, DialectNative, total, []test{
		{"totals of two GPUs", asks{number: "2", memory: "2048", cores: "30"}, []Share{gib, gib}, ""},
		{"totals of one GPU", asks{memory: "1024", cores: "15"}, []Share{gib}, ""},
		{"totals that no number of units divides", asks{number: "3", percent: "100", cores: "100"}, []Share{third, third, third}, ""},
		{"all memory of two GPUs", asks{number: "2", percent: "200"}, []Share{{Memory: whole, Slots: 1}, {Memory: whole, Slots: 1}}, ""},
		{"more than all of two GPUs", asks{number: "2", percent: "201"}, nil, percent + " is 201; allowed: 1 to 200 (percent of the memory of all GPUs together)"},
		{"more than all cores of two GPUs", asks{number: "2", memory: "2", cores: "201"}, nil, cores + " is 201; allowed: 1 to 200 (percent of the time of all GPUs together)"},
		{"no memory beside a number", asks{number: "2"}, nil, "names no memory; required: " + memory + " or " + percent},
		{"no memory beside cores", asks{cores: "30"}, nil, `because dialects.native.amounts is "total"`},
	})

	renamed := config.Default().Dialects
	renamed.Native.Memory = "example.org/mem"
	run(t, DialectNative, renamed, []test{
		{"renamed", asks{"example.org/mem": "1"}, []Share{{Memory: Memory{Bytes: MiB}, Slots: 1}}, ""},
		{"the old name means nothing", asks{memory: "1"}, nil, ""},
	})
}
