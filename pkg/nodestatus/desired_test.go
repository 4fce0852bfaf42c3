package nodestatus

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// nativeOnly offers our own dialect alone, so that expectations stay short.
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

func TestDesired(t *testing.T) {
	const memory = "nri-vgpu.io/vgpu-memory"
	now := time.Now()
	cfg := nativeOnly()
	one := Resources(request.Capacity([]gpu.GPU{testGPU("GPU-a", true)}, cfg))
	raised := Resources{}
	for name, units := range one {
		raised[name] = units
	}
	raised[memory] = 30000

	report := func(change func(*nodereport.Report)) *nodereport.Report {
		r := nodereport.Report{
			PluginRegistered: true,
			GPUs:             []gpu.GPU{testGPU("GPU-a", true), testGPU("GPU-b", false)},
		}
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
		without bool // a reason is given
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
			report: report(func(r *nodereport.Report) { r.GPUs = r.GPUs[1:] })},
		{name: "never below what is used", want: raised,
			report: report(func(r *nodereport.Report) { r.Used = map[string]int64{memory: 30000} })},
		{name: "use below capacity changes nothing", want: one,
			report: report(func(r *nodereport.Report) { r.Used = map[string]int64{memory: 1} })},
		{name: "use of a disabled dialect is not advertised", want: one,
			report: report(func(r *nodereport.Report) { r.Used = map[string]int64{"cnvrg.io/metagpu": 30} })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Observation{Report: tt.report, Alive: now.Add(-tt.age)}
			got, why := Desired(o, cfg, time.Minute, now)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("desired (-want +got):\n%s", diff)
			}
			if (why != "") != tt.without {
				t.Errorf("reason is %q", why)
			}
		})
	}
}
