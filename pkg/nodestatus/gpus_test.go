// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

func byPlugin(cfg config.Config) config.Config {
	cfg.Scheduling.Mode = config.ScheduleByPlugin
	return cfg
}

// TestDesiredByPlugin checks that a Node for nri-vgpu-scheduler advertises the capacity of the
// healthy GPUs, whatever the usage is. The Node must advertise at least the requests of its pods.
func TestDesiredByPlugin(t *testing.T) {
	const (
		cores  = "nri-vgpu.io/vgpu-cores"
		number = "nri-vgpu.io/vgpu-number"
		part   = "nri-vgpu.io/vgpu-memory-percentage"
	)
	type units = map[string]int64
	a, b := testGPU("GPU-a", true), testGPU("GPU-b", true)
	ill := testGPU("GPU-b", false)
	both, first := Resources{testMemory: 32768, part: 200, cores: 200, number: 20}, Resources{testMemory: 16384, part: 100, cores: 100, number: 10}
	with := func(r Resources, name string, n int64) Resources {
		r = maps.Clone(r)
		r[name] = n
		return r
	}
	tests := []struct {
		name string
		gpus []gpu.GPU
		used units
		free units
		want Resources
	}{
		{"unused", []gpu.GPU{a, b}, nil, both, both},
		{"its own pods lower nothing", []gpu.GPU{a, b}, units{testMemory: 20000, number: 2}, units{testMemory: 12768}, both},
		{"others' pods lower nothing", []gpu.GPU{a, b}, nil, nil, both},
		{"an unhealthy GPU does not count", []gpu.GPU{a, ill}, nil, first, first},
		{"pods on both GPUs stay", []gpu.GPU{a, ill}, units{testMemory: 18432, number: 2}, nil, with(first, testMemory, 18432)},
		{"a pod on an unhealthy GPU takes no room of the others", []gpu.GPU{a, ill}, units{testMemory: 10000}, first, with(first, testMemory, 26384)},
		{"pods request more than the GPUs have", []gpu.GPU{a, b}, units{testMemory: 40000}, nil, with(both, testMemory, 40000)},
		{"no GPU is healthy", []gpu.GPU{ill}, nil, nil, nil},
		{"no GPU is healthy, and pods stay", []gpu.GPU{ill}, units{testMemory: 4096}, nil, Resources{testMemory: 4096}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now, free := time.Now(), maps.Clone(tt.free)
			report := &nodereport.Report{PluginRegistered: true, GPUs: tt.gpus, Sums: &nodereport.Sums{Used: tt.used, Free: tt.free}}
			got, _ := Desired(Observation{Report: report, Alive: now}, byPlugin(nativeOnly()), nil, time.Minute, now)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("desired (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(free, report.Sums.Free); diff != "" {
				t.Errorf("Desired changed the report (-before +after):\n%s", diff)
			}
		})
	}
}

// TestSlotsAreForLabelledNodesByPlugin checks that a Node without the label offers no new slots,
// but keeps the slots of its pods.
func TestSlotsAreForLabelledNodesByPlugin(t *testing.T) {
	const slots = "k8s.amazonaws.com/vgpu"
	label := map[string]string{"k8s.amazonaws.com/accelerator": "vgpu"}
	now := time.Now()
	for _, tt := range []struct {
		labels     map[string]string
		used, want int64
	}{{label, 0, 10}, {label, 3, 10}, {nil, 0, 0}, {nil, 3, 3}} {
		cfg := byPlugin(config.Default())
		cfg.Dialects.AWS.NodeLabel = "k8s.amazonaws.com/accelerator=vgpu"
		report := &nodereport.Report{PluginRegistered: true, GPUs: []gpu.GPU{testGPU("GPU-a", true)},
			Sums: &nodereport.Sums{Used: map[string]int64{slots: tt.used}}}
		got, _ := Desired(Observation{Report: report, Alive: now}, cfg, tt.labels, time.Minute, now)
		if got[slots] != tt.want || got["cnvrg.io/metagpu"] != 100 {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
}

// gpus returns the annotation that lists the Node's GPUs.
func (a *nodeAPI) gpus() (string, bool) { return a.annotation(assign.GPUsAnnotation) }

func (a *nodeAPI) annotation(key string) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.node == nil {
		return "", false
	}
	text, ok := a.node.Annotations[key]
	return text, ok
}

// awaitGPUs fails unless the Node lists exactly these GPUs in time. For nil, the annotation must be
// absent.
func (r *rig) awaitGPUs(want []gpu.GPU, limit time.Duration) {
	r.t.Helper()
	if err := eventually.Wait(limit, "the Node lists its GPUs", func() bool {
		text, ok := r.api.gpus()
		return ok == (want != nil) && (want == nil || text == assign.FormatGPUs(want))
	}); err != nil {
		text, ok := r.api.gpus()
		r.t.Fatalf("%v: the annotation is %q, present: %t; want %+v\nlog:\n%s", err, text, ok, want, r.log)
	}
}

const foreignGPUs = `{"metadata":{"annotations":{"nri-vgpu.io/gpus":%s}}}`

func TestPatcherListsTheGPUs(t *testing.T) {
	t.Parallel()
	cfg := byPlugin(nativeOnly())
	both := []gpu.GPU{testGPU("GPU-a", true), testGPU("GPU-b", true)}
	ill := []gpu.GPU{testGPU("GPU-a", true), testGPU("GPU-b", false)}
	r := startRig(t, cfg, time.Minute)
	r.api.create()
	report := func(gpus []gpu.GPU) { r.report(func(report *nodereport.Report) { report.GPUs = gpus }) }
	report(both)
	r.await(worth(cfg, both...), polled)
	r.awaitGPUs(both, 0)
	if n := r.api.patchCount(); n != 1 {
		t.Errorf("resources and GPUs took %d patches, want 1", n)
	}
	report(both)
	r.still(2 * pollInterval)

	before := r.api.patchCount()
	report(ill)
	r.await(worth(cfg, ill...), polled)
	r.awaitGPUs(ill, 0)
	if n := r.api.patchCount() - before; n != 1 {
		t.Errorf("a change of health took %d patches, want 1", n)
	}
	// The list of GPUs changes although the resources do not change: the pods hold all resources.
	full := func(gpus []gpu.GPU) {
		r.write(nodereport.Report{Heartbeat: time.Now(), PluginRegistered: true, GPUs: gpus, Sums: &nodereport.Sums{Used: worth(cfg, both...)}})
	}
	full(both)
	r.awaitGPUs(both, polled)
	full(ill)
	r.awaitGPUs(ill, polled)
	r.await(worth(cfg, both...), 0)
	// The patcher counts a write after the API server's answer.
	eventually.Holds(t, promptly, "the write of the GPUs alone is counted", func() bool {
		_, metrics := get(t, r.patcher, "/metrics")
		return strings.Contains(metrics, `nri_vgpu_patcher_patches_total{reason="annotations"} 1`)
	})

	for _, hostile := range []string{`null`, `"[]"`, `""`} {
		r.api.interfere(fmt.Sprintf(foreignGPUs, hostile))
		r.awaitGPUs(ill, promptly)
	}
	r.report(func(report *nodereport.Report) { report.PluginRegistered = false })
	r.awaitGPUs(nil, polled)
	r.await(Resources{}, 0)
	r.still(200 * time.Millisecond)
	report(both)
	r.awaitGPUs(both, polled)
}

// TestPatcherKeepsTheGPUsWhileThePodsAreUnknown checks that the report of a starting agent changes
// neither the resources nor the list of GPUs. The agent may not have reached the driver yet.
func TestPatcherKeepsTheGPUsWhileThePodsAreUnknown(t *testing.T) {
	t.Parallel()
	cfg := byPlugin(nativeOnly())
	one := []gpu.GPU{testGPU("GPU-a", true)}
	r := startRig(t, cfg, time.Minute)
	r.api.create()
	r.report(nil)
	r.awaitGPUs(one, polled)
	r.write(nodereport.Report{Heartbeat: time.Now(), PluginRegistered: true})
	time.Sleep(2 * pollInterval)
	r.awaitGPUs(one, 0)
	r.await(worth(cfg, one...), 0)
}

func TestPatcherListsNoGPUsForOtherSchedulers(t *testing.T) {
	t.Parallel()
	cfg := nativeOnly()
	r := startRig(t, cfg, time.Minute)
	r.api.createWith(fmt.Sprintf(foreignGPUs, `"[]"`))
	r.report(nil)
	r.await(worth(cfg, testGPU("GPU-a", true)), polled)
	r.awaitGPUs(nil, 0)
	r.still(200 * time.Millisecond)
	r.api.interfere(fmt.Sprintf(foreignGPUs, `"[]"`))
	r.awaitGPUs(nil, promptly)
}

// TestPatcherSlowsDownInAFightForTheGPUs checks that a program that keeps removing the annotation
// costs the API server few writes.
func TestPatcherSlowsDownInAFightForTheGPUs(t *testing.T) {
	t.Parallel()
	one := []gpu.GPU{testGPU("GPU-a", true)}
	r := startRig(t, byPlugin(nativeOnly()), time.Minute)
	r.api.create()
	r.report(nil)
	r.awaitGPUs(one, polled)
	for range restoreBurst {
		r.api.interfere(fmt.Sprintf(foreignGPUs, `null`))
		r.awaitGPUs(one, promptly)
	}
	before := r.api.patchCount()
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		r.api.interfere(fmt.Sprintf(foreignGPUs, `null`))
		time.Sleep(20 * time.Millisecond)
	}
	if n := r.api.patchCount() - before; n > 1 {
		t.Errorf("%d patches within a second of the fight, want at most 1", n)
	}
	// The patcher writes a change of the resources at once during the fight.
	r.report(func(report *nodereport.Report) { report.GPUs[0].Healthy = false })
	r.await(Resources{}, polled)
	r.awaitGPUs(nil, 0)
}

// TestRemoveTakesTheGPUsAway checks that Remove removes the annotation in each mode of scheduling.
func TestRemoveTakesTheGPUsAway(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{config.ScheduleBySums, config.ScheduleByPlugin} {
		api := newNodeAPI(t)
		api.createWith(fmt.Sprintf(foreignGPUs, `"[]"`))
		p := remover(t, api)
		p.opts.Config.Scheduling.Mode = mode
		if err := p.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if text, ok := api.gpus(); ok || api.patchCount() != 1 {
			t.Errorf("mode %s: left is %q, present: %t, after %d patches", mode, text, ok, api.patchCount())
		}
	}
}
