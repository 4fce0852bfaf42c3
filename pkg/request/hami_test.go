// SPDX-License-Identifier: Apache-2.0

package request

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// These are HAMi's resources.
const (
	hamiNumber   = "nvidia.com/gpu"
	hamiMemory   = "nvidia.com/gpumem"
	hamiPercent  = "nvidia.com/gpumem-percentage"
	hamiCores    = "nvidia.com/gpucores"
	hamiPriority = "nvidia.com/priority"
)

// hamiConfig returns the configuration in docs/how-to/migrate.md for users of HAMi.
func hamiConfig(t *testing.T) config.Config {
	t.Helper()
	guide, err := os.ReadFile("../../docs/how-to/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)## From HAMi\n.*?```toml\n(.*?)```").FindSubmatch(guide)
	if block == nil {
		t.Fatal("the guide has no configuration for HAMi")
	}
	cfg, err := config.Parse(block[1])
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestHAMi(t *testing.T) {
	cfg := hamiConfig(t)
	part := Share{Memory: Memory{Bytes: 3000 * MiB}, ComputePPM: 300_000, Slots: 1}
	half := Share{Memory: Memory{PPM: 500_000}, ComputePPM: 300_000, Slots: 1}
	alone := Share{Memory: Memory{PPM: Whole}, ComputePPM: Whole, Slots: 1, Exclusive: true}
	whole := Share{Memory: Memory{PPM: Whole}, Slots: 1}
	run(t, DialectHAMi, cfg.Dialects, []test{
		{"a GPU, memory and cores", asks{hamiNumber: "1", hamiMemory: "3000", hamiCores: "30"}, []Share{part}, ""},
		{"a fraction of two GPUs", asks{hamiNumber: "2", hamiPercent: "50", hamiCores: "30"}, []Share{half, half}, ""},
		{"memory alone is for one GPU", asks{hamiMemory: "1024"}, []Share{{Memory: Memory{Bytes: 1024 * MiB}, Slots: 1}}, ""},
		{"cores alone have all memory", asks{hamiCores: "30"}, []Share{{Memory: Memory{PPM: Whole}, ComputePPM: 300_000, Slots: 1}}, ""},
		{"a GPU alone is exclusive", asks{hamiNumber: "2"}, []Share{alone, alone}, ""},
		{"all memory is exclusive", asks{hamiPercent: "100"}, []Share{alone}, ""},
		{"100 percent beside MiB are exclusive", asks{hamiMemory: "3000", hamiPercent: "100"},
			[]Share{{Memory: Memory{Bytes: 3000 * MiB}, ComputePPM: Whole, Slots: 1, Exclusive: true}}, ""},
		{"all cores are exclusive", asks{hamiNumber: "1", hamiMemory: "3000", hamiCores: "100"},
			[]Share{{Memory: Memory{Bytes: 3000 * MiB}, ComputePPM: Whole, Slots: 1, Exclusive: true}}, ""},
		{"0 cores share the GPU", asks{hamiNumber: "1", hamiCores: "0"}, []Share{whole}, ""},
		{"0 MiB share the GPU", asks{hamiNumber: "1", hamiMemory: "0"}, []Share{whole}, ""},
		{"0 percent share the GPU", asks{hamiNumber: "1", hamiPercent: "0"}, []Share{whole}, ""},
		{"MiB before percent", asks{hamiMemory: "1", hamiPercent: "25"}, []Share{{Memory: Memory{Bytes: MiB}, Slots: 1}}, ""},
		{"a priority besides", asks{hamiNumber: "1", hamiMemory: "3000", hamiCores: "30", hamiPriority: "1"}, []Share{part}, ""},
		{"a priority alone", asks{hamiPriority: "1"}, nil, ""},
		{"any priority", asks{hamiMemory: "1", hamiPriority: "7"}, []Share{{Memory: Memory{Bytes: MiB}, Slots: 1}}, ""},
		{"number zero", asks{hamiNumber: "0", hamiMemory: "1"}, nil, hamiNumber + " is 0; allowed: 1 to 16 (GPUs)"},
		{"too many cores", asks{hamiMemory: "1", hamiCores: "150"}, nil, hamiCores + " is 150; allowed: 0 to 100"},
	})

	defaults := cfg.Dialects
	defaults.HAMi.DefaultNumber, defaults.HAMi.DefaultMemoryMiB, defaults.HAMi.DefaultCores, defaults.HAMi.MemoryFactor = 2, 500, 10, 1024
	with := func(bytes uint64, ppm uint32) Share {
		return Share{Memory: Memory{Bytes: bytes}, ComputePPM: ppm, Slots: 1, Exclusive: ppm == Whole}
	}
	run(t, DialectHAMi, defaults, []test{
		{"the default number and cores, and units of memory", asks{hamiMemory: "3"}, []Share{with(3*GiB, 100_000), with(3*GiB, 100_000)}, ""},
		{"the default memory", asks{hamiNumber: "1", hamiCores: "30"}, []Share{with(500*MiB, 300_000)}, ""},
		{"the default memory, and the webhook's cores", asks{hamiNumber: "1"}, []Share{with(500*MiB, Whole)}, ""},
		{"too many units", asks{hamiMemory: "16385"}, nil, hamiMemory + " is 16385; allowed: 0 to 16384 (units of 1024 MiB of each GPU)"},
	})
	defaults.HAMi.MemoryFactor = 2
	run(t, DialectHAMi, defaults, []test{
		{"too many small units", asks{hamiMemory: "8388609"}, nil, hamiMemory + " is 8388609; allowed: 0 to 8388608 (units of 2 MiB of each GPU)"},
	})
	run(t, DialectHAMi, config.Default().Dialects, []test{{"the dialect is off by default", asks{hamiNumber: "1"}, nil, ""}})
}

func TestHAMiAdvertises(t *testing.T) {
	cfg := hamiConfig(t)
	cfg.Dialects = config.Dialects{HAMi: cfg.Dialects.HAMi}
	cfg.Dialects.HAMi.MemoryFactor, cfg.Dialects.HAMi.NumberPerGPU = 10, 7
	g := gpu.GPU{UUID: "GPU-1", MemoryBytes: 1000 * MiB, Healthy: true}
	want := map[string]int64{hamiNumber: 7, hamiMemory: 100, hamiPercent: 100, hamiCores: 100}
	if diff := cmp.Diff(want, Capacity([]gpu.GPU{g}, cfg)); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	left := Left{Memory: 255 * MiB, ComputePPM: Whole, SlotsTaken: 1, Held: true}
	want = map[string]int64{hamiNumber: 6, hamiMemory: 25, hamiPercent: 25, hamiCores: 99}
	if diff := cmp.Diff(want, Free([]gpu.GPU{g}, map[string]Left{"GPU-1": left}, cfg)); diff != "" {
		t.Errorf("free (-want +got):\n%s", diff)
	}
}

// TestHAMiUnderOtherNames checks that a configuration replaces the names of the resources.
func TestHAMiUnderOtherNames(t *testing.T) {
	const number, memory, percent, cores, priority = "a.b/gpus", "a.b/mib", "a.b/percent", "a.b/cores", "a.b/priority"
	dialects := config.Default().Dialects
	dialects.HAMi.Enabled = true
	h := &dialects.HAMi
	h.Number, h.Memory, h.MemoryPercentage, h.Cores, h.Priority = number, memory, percent, cores, priority
	part := Share{Memory: Memory{Bytes: 3000 * MiB}, ComputePPM: 300_000, Slots: 1}
	run(t, DialectHAMi, dialects, []test{
		{"GPUs, memory, cores and priority", asks{number: "2", memory: "3000", cores: "30", priority: "1"}, []Share{part, part}, ""},
		{"percent of the memory", asks{percent: "50"}, []Share{{Memory: Memory{PPM: 500_000}, Slots: 1}}, ""},
	})
}
