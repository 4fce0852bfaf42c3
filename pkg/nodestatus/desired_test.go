// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// nativeOnly returns a configuration with only the native dialect, so that expectations stay short.
func nativeOnly() config.Config {
	cfg := config.Default()
	cfg.Dialects.Alnair.Enabled = false
	cfg.Dialects.AWS.Enabled = false
	cfg.Dialects.Volcano.Enabled = false
	cfg.Dialects.MetaGPU.Enabled = false
	return cfg
}

func testGPU(uuid string, healthy bool) gpu.GPU {
	return gpu.GPU{UUID: uuid, Name: "NVIDIA H200", MemoryBytes: 16 << 30, Healthy: healthy}
}

// healthySums returns sums without usage: all capacity of the healthy GPUs is free.
func healthySums(gpus []gpu.GPU, cfg config.Config) *nodereport.Sums {
	return &nodereport.Sums{Free: request.Capacity(gpus, cfg)}
}

func TestDesired(t *testing.T) {
	now := time.Now()
	cfg := nativeOnly()
	one := Resources(request.Capacity([]gpu.GPU{testGPU("GPU-a", true)}, cfg))

	report := func(change func(*nodereport.Report)) *nodereport.Report {
		gpus := []gpu.GPU{testGPU("GPU-a", true), testGPU("GPU-b", false)}
		r := nodereport.Report{PluginRegistered: true, GPUs: gpus, Sums: healthySums(gpus, cfg)}
		if change != nil {
			change(&r)
		}
		return &r
	}
	tests := []struct {
		name    string
		report  *nodereport.Report
		age     time.Duration
		want    Resources
		without bool // Desired returns a reason
	}{
		{name: "no report", without: true},
		{name: "healthy GPUs count, others do not", report: report(nil), want: one},
		{name: "at the age limit", report: report(nil), age: time.Minute, want: one},
		{name: "stale", report: report(nil), age: time.Minute + 1, without: true},
		{name: "not registered", without: true,
			report: report(func(r *nodereport.Report) { r.PluginRegistered = false })},
		{name: "no GPU", without: true,
			report: report(func(r *nodereport.Report) { r.GPUs = nil })},
		{name: "only unhealthy GPUs: withdrawn, not zeroed", without: true,
			report: report(func(r *nodereport.Report) { r.GPUs, r.Sums.Free = r.GPUs[1:], nil })},
		{name: "pods unknown", without: true,
			report: report(func(r *nodereport.Report) { r.Sums = nil })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Observation{Report: tt.report, Alive: now.Add(-tt.age)}
			got, why := Desired(o, cfg, nil, time.Minute, now)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("desired (-want +got):\n%s", diff)
			}
			if (why != "") != tt.without {
				t.Errorf("reason is %q", why)
			}
		})
	}
}

func TestCapacityIsWhatIsUsedAndWhatIsFree(t *testing.T) {
	const (
		memory = "nri-vgpu.io/vgpu-memory"
		cores  = "nri-vgpu.io/vgpu-cores"
		number = "nri-vgpu.io/vgpu-number"
	)
	healthy := []gpu.GPU{testGPU("GPU-a", true), testGPU("GPU-b", true)} // 32768 MiB
	ill := []gpu.GPU{testGPU("GPU-a", true), testGPU("GPU-b", false)}
	type sums = nodereport.Sums
	type units = map[string]int64
	tests := []struct {
		name string
		gpus []gpu.GPU
		sums sums
		want Resources
	}{
		{"its own pods leave it as it is", healthy,
			sums{Used: units{memory: 4096}, Free: units{memory: 28672, cores: 200, number: 19}},
			Resources{memory: 32768, cores: 200, number: 19}},
		{"others' pods lower it", healthy, sums{Free: units{memory: 28672, cores: 150, number: 20}},
			Resources{memory: 28672, cores: 150, number: 20}},
		{"nothing is left beside its own", healthy, sums{Used: units{memory: 4096}}, Resources{memory: 4096}},
		{"capacity in use on a lost GPU stays", ill,
			sums{Used: units{memory: 18432}, Free: units{memory: 12288}}, Resources{memory: 30720}},
		{"requests of its pods that it cannot satisfy do not increase it", healthy,
			sums{Used: units{memory: 8192}, Free: units{memory: 32768}}, Resources{memory: 32768}},
		{"the requests of its pods always fit", healthy,
			sums{Used: units{memory: 40000}, Free: units{memory: 32768}}, Resources{memory: 40000}},
		{"a disabled dialect is not advertised", healthy,
			sums{Used: units{"cnvrg.io/metagpu": 30}, Free: units{"cnvrg.io/metagpu": 30}}, Resources{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, capacity(tt.gpus, tt.sums, nativeOnly())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestVolcanoSeesANodeOfWhichAnythingIsLeft(t *testing.T) {
	cfg := config.Default()
	cfg.Dialects = config.Dialects{Volcano: cfg.Dialects.Volcano}
	v := cfg.Dialects.Volcano
	gpus := []gpu.GPU{testGPU("GPU-a", true)}
	for _, tt := range []struct {
		name string
		sums nodereport.Sums
		want Resources
	}{
		{"others have all of the time", nodereport.Sums{Free: map[string]int64{v.Number: 9, v.Memory: 512}},
			Resources{v.Number: 9, v.Memory: 512, v.Cores: 1}},
		{"its pods named memory alone, and have all of it", nodereport.Sums{Used: map[string]int64{v.Memory: 16384}},
			Resources{v.Number: 1, v.Memory: 16384, v.Cores: 1}},
		{"others have everything", nodereport.Sums{}, Resources{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, capacity(gpus, tt.sums, cfg)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSlotsAreForLabelledNodes(t *testing.T) {
	const slots = "k8s.amazonaws.com/vgpu"
	now := time.Now()
	gpus := []gpu.GPU{testGPU("GPU-a", true)}
	for _, tt := range []struct {
		label  string
		labels map[string]string
		used   int64
		want   int64
	}{
		{"", nil, 2, 10},
		{"k8s.amazonaws.com/accelerator=vgpu", map[string]string{"k8s.amazonaws.com/accelerator": "vgpu"}, 2, 10},
		{"k8s.amazonaws.com/accelerator", map[string]string{"k8s.amazonaws.com/accelerator": "other"}, 2, 10},
		{"k8s.amazonaws.com/accelerator=vgpu", map[string]string{"k8s.amazonaws.com/accelerator": "other"}, 0, 0},
		{"k8s.amazonaws.com/accelerator=vgpu", nil, 0, 0},
		{"k8s.amazonaws.com/accelerator=vgpu", nil, 2, 2}, // running pods keep their slots
	} {
		cfg := config.Default()
		cfg.Dialects.AWS.NodeLabel = tt.label
		sums := &nodereport.Sums{Used: map[string]int64{slots: tt.used}, Free: request.Capacity(gpus, cfg)}
		sums.Free[slots] -= tt.used
		report := &nodereport.Report{PluginRegistered: true, GPUs: gpus, Sums: sums}
		got, _ := Desired(Observation{Report: report, Alive: now}, cfg, tt.labels, time.Minute, now)
		if got[slots] != tt.want || got["cnvrg.io/metagpu"] != 100 || sums.Free[slots] != 10-tt.used {
			t.Errorf("%+v: got %v of %v", tt, got, sums)
		}
	}
}
