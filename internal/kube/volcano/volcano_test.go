// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

const mib = 1 << 20

// v100s returns a GPU as in the documentation of Volcano, and an unhealthy GPU with separators in
// its name.
func v100s() []gpu.GPU {
	return []gpu.GPU{
		{UUID: "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", Index: 0, Name: "Tesla V100-PCIE-32GB", MemoryBytes: 32768 * mib, Healthy: true},
		{UUID: "GPU-2", Index: 1, Name: "Odd, name: one", MemoryBytes: 32768*mib + 5, Healthy: false},
	}
}

func TestRegistered(t *testing.T) {
	cfg := config.Default()
	const want = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,NVIDIA-Tesla V100-PCIE-32GB,true,hami-core:" +
		"GPU-2,0,32768,NVIDIA-Odd  name  one,false,hami-core:"
	if got := Registered(v100s(), cfg); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	cfg.Node.SlotsPerGPU, cfg.Node.ReservedMemoryMiB = 4, 768
	if got := Registered(v100s()[:1], cfg); !strings.Contains(got, ",4,32000,") {
		t.Errorf("got %s, want 4 slots and 32000 MiB", got)
	}
	cfg.Sharing.Method, cfg.Sharing.MPSGPUs = config.ShareByMPS, []string{"*"}
	cfg.Sharing.MPS.ClientsPerGPU, cfg.Sharing.MPS.ClientsPerContainer = 10, 4
	if got := Registered(v100s()[:1], cfg); !strings.Contains(got, ",2,") {
		t.Errorf("got %s, want the 2 slots that the Multi-Process Service serves", got)
	}
	cfg.Sharing.MPS.ClientsPerGPU, cfg.Sharing.MPS.ClientsPerContainer = 3, 0
	if got := Registered(v100s()[:1], cfg); !strings.Contains(got, ",3,") {
		t.Errorf("got %s, want a slot for each of 3 clients", got)
	}
}

func TestAssignmentIsWrittenAsItWasRead(t *testing.T) {
	for text, want := range map[string]Assignment{
		"":                     {nil},
		"GPU-1,NVIDIA,3000,0:": {{{"GPU-1", "NVIDIA", 3000, 0}}},
		"GPU-1,NVIDIA,3000,50:GPU-2,NVIDIA,3000,50:": {{{"GPU-1", "NVIDIA", 3000, 50}, {"GPU-2", "NVIDIA", 3000, 50}}},
		"GPU-1,NVIDIA,1,2:;GPU-2,NVIDIA,3,4:":        {{{"GPU-1", "NVIDIA", 1, 2}}, {{"GPU-2", "NVIDIA", 3, 4}}},
		"GPU-1,NVIDIA,4294967295,4294967295:":        {{{"GPU-1", "NVIDIA", 1<<32 - 1, 1<<32 - 1}}},
		// The first container has vgpu-number 0.
		";GPU-2,NVIDIA,3,4:": {nil, {{"GPU-2", "NVIDIA", 3, 4}}},
		"GPU-1,NVIDIA,1,2:;": {{{"GPU-1", "NVIDIA", 1, 2}}, nil},
	} {
		got, err := Parse(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
		if got.String() != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
}

func TestAssignmentsThatMeanNothing(t *testing.T) {
	for _, text := range []string{
		"GPU-1,NVIDIA,3000,0", "GPU-1,NVIDIA,3000:", "GPU-1,NVIDIA,3000,0,1:", "GPU-1,NVIDIA,-1,0:", "GPU-1,NVIDIA,1,x:",
		"GPU-1,NVIDIA,4294967296,0:", "GPU-1,NVIDIA,1,4294967296:", ",NVIDIA,1,0:", ":", "GPU-1,NVIDIA,1,0::", "GPU-1,NVIDIA, 1,0:",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q was taken for %v", text, got)
		}
	}
}

func TestWhoAsks(t *testing.T) {
	now := time.Date(2026, 11, 21, 14, 0, 0, 0, time.UTC)
	if got := Reported(now); got != "Reported 2026-11-21 14:00:00" || Asks(got) {
		t.Errorf("%q requests an answer, or is none", got)
	}
	for _, handshake := range []string{"", "Requesting_2026.11.21 14:00:00", "Deleted_2026.11.21 14:01:00"} {
		if !Asks(handshake) {
			t.Errorf("%q requests no answer", handshake)
		}
	}
}
