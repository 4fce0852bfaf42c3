// SPDX-License-Identifier: Apache-2.0

package local

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

func TestParseRequest(t *testing.T) {
	tests := []struct {
		memory string
		cores  int
		want   Request
		err    string
	}{
		{memory: "2Gi", cores: 30, want: Request{MemoryBytes: 2 << 30, ComputePPM: 300_000}},
		{memory: "1500M", want: Request{MemoryBytes: 1_500_000_000}},
		{memory: "1073741824", want: Request{MemoryBytes: 1 << 30}},
		{memory: "1Mi", want: Request{MemoryBytes: 1 << 20}},
		{memory: "4096", err: `--memory is "4096"; allowed: an amount of bytes, at least 1Mi`},
		{cores: 100, want: Request{ComputePPM: 1_000_000}},
		{want: Request{}},
		{memory: "2GB", err: `--memory is "2GB"; allowed: an amount of bytes, at least 1Mi, such as 2Gi or 512Mi`},
		{memory: "500m", err: `--memory is "500m"`},
		{memory: "0", err: `--memory is "0"`},
		{memory: "-1Gi", err: `--memory is "-1Gi"`},
		{memory: "10E", err: `--memory is "10E"`},
		{cores: 101, err: "--cores is 101; allowed: 1 to 100"},
		{memory: "x", cores: -1, err: "--cores is -1"},
	}
	for _, tt := range tests {
		t.Run(tt.memory, func(t *testing.T) {
			got, err := ParseRequest(tt.memory, tt.cores, nil)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDevices(t *testing.T) {
	gpus := []GPU{
		{Index: 0, UUID: "GPU-a", MemoryBytes: 16 << 30},
		{Index: 1, UUID: "GPU-b", MemoryBytes: 8 << 30},
	}
	device := func(uuid string, gib uint64, ppm uint32) limits.Device {
		return limits.Device{UUID: uuid, MemoryBytes: gib << 30, ComputePPM: ppm}
	}
	const free = limits.NoComputeLimit
	tests := []struct {
		name    string
		gpus    []GPU
		request Request
		want    []limits.Device
		err     string
	}{
		{"the first GPU", gpus, Request{MemoryBytes: 2 << 30}, []limits.Device{device("GPU-a", 2, free)}, ""},
		{"all memory", gpus, Request{ComputePPM: 300_000}, []limits.Device{device("GPU-a", 16, 300_000)}, ""},
		{"by index and UUID", gpus, Request{GPUs: []string{"1", "GPU-a"}},
			[]limits.Device{device("GPU-b", 8, free), device("GPU-a", 16, free)}, ""},
		{"no such GPU", gpus, Request{GPUs: []string{"2"}}, nil, `--gpu is "2"; allowed: 0 or GPU-a, 1 or GPU-b`},
		{"one GPU twice", gpus, Request{GPUs: []string{"1", "GPU-b"}}, nil, "--gpu names GPU 1 (GPU-b) twice"},
		{"more than there is", gpus, Request{MemoryBytes: 9 << 30, GPUs: []string{"1"}}, nil,
			"--memory is 9216 MiB; allowed: at most the 8192 MiB of GPU 1 (GPU-b)"},
		{"no GPU", nil, Request{MemoryBytes: 1}, nil, "CUDA shows no GPU here"},
		{"too many", gpus, Request{GPUs: strings.Split(strings.Repeat("0", 17), "")}, nil, "--gpu occurs 17 times; allowed: at most 16"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.request.Devices(tt.gpus)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSetMaximum(t *testing.T) {
	const free = limits.NoComputeLimit
	tests := []struct {
		policy string
		most   int
		ppm    uint32
		want   uint32
		err    string
	}{
		{"", 0, 0, 0, ""},
		{"cap", 0, 300_000, 0, ""},
		{"share", 0, 300_000, free, ""},
		{"share", 0, 0, 0, "--policy share needs a guarantee: set --cores, 1 to 99"},
		{"share", 0, free, 0, "--policy share needs a guarantee: set --cores, 1 to 99"},
		{"lend", 0, 300_000, 0, `--policy is "lend"; allowed: cap, share`},
		{"", 50, 200_000, 500_000, ""},
		{"", 100, 200_000, free, ""},
		{"", 20, 200_000, 0, ""},
		{"", 19, 200_000, 0, "--cores-max is 19; allowed: 20, which --cores guarantees, to 100 (percent of the GPU's time)"},
		{"", 101, 200_000, 0, "--cores-max is 101; allowed: 20, which --cores guarantees, to 100 (percent of the GPU's time)"},
		{"", -1, 200_000, 0, "--cores-max is -1; allowed: 20, which --cores guarantees, to 100 (percent of the GPU's time)"},
		{"", 50, 0, 0, "--cores-max needs a guarantee: set --cores, 1 to 99"},
		{"", 100, free, 0, "--cores-max needs a guarantee: set --cores, 1 to 99"},
		{"cap", 50, 200_000, 0, "--policy and --cores-max are both set: leave --policy out"},
	}
	for _, tt := range tests {
		r := Request{ComputePPM: tt.ppm}
		err := r.SetMaximum(tt.policy, tt.most)
		if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err || r.MaximumPPM != tt.want {
			t.Errorf("%q, %d with %d ppm: maximum %d, error %v; want %d, %q", tt.policy, tt.most, tt.ppm, r.MaximumPPM, err, tt.want, tt.err)
		}
	}
}
