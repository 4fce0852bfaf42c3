// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const mib = 1 << 20

func allocation(devices ...placement.Device) placement.Allocation {
	return placement.Allocation{PodUID: "u", Namespace: "ns", Pod: "pod-u", Container: "main", Kind: "app", Devices: devices}
}

func usage(pid uint32, used, pending uint64) limits.Usage {
	device := limits.DeviceUsage{UsedBytes: used, PendingBytes: pending}
	return limits.Usage{
		Devices:   []limits.DeviceUsage{device},
		Processes: []limits.ProcessUsage{{PID: pid, Devices: []limits.ProcessDeviceUsage{{DeviceUsage: device}}}},
	}
}

func at(pod, container string) registry.Place {
	return registry.Place{PodUID: pod, Container: container}
}

func TestJudge(t *testing.T) {
	a := placement.Device{UUID: "GPU-a", MemoryBytes: 1000 * mib}
	slot := usage(7, 0, 0)
	tests := []struct {
		name       string
		place      registry.Place
		uuid       string
		container  container
		registered bool
		want       Kind // "" for a process that is allowed
	}{
		{"registered", at("u", "c"), "GPU-a", container{Allocation: allocation(a), interposed: true}, true, ""},
		{"has a slot", at("u", "c"), "GPU-a", container{Allocation: allocation(a), interposed: true, after: slot}, false, ""},
		{"had a slot", at("u", "c"), "GPU-a", container{Allocation: allocation(a), interposed: true, before: slot}, false, ""},
		{"neither", at("u", "c"), "GPU-a", container{Allocation: allocation(a), interposed: true, after: usage(8, 0, 0)}, false, Bypass},
		{"whole GPU", at("u", "c"), "GPU-a", container{Allocation: allocation(a)}, false, ""},
		{"another's whole GPU", at("u", "c"), "GPU-b", container{Allocation: allocation(a)}, false, Bypass},
		{"registered, another GPU", at("u", "c"), "GPU-b", container{Allocation: allocation(a), interposed: true}, true, Bypass},
		{"ours, but what it holds is not known", at("u", "c"), "GPU-a", container{Allocation: allocation()}, false, ""},
		{"another container", at("u", "d"), "GPU-a", container{Allocation: allocation(a)}, true, Pod},
		{"no container of its pod", at("u", ""), "GPU-a", container{Allocation: allocation(a)}, false, Pod},
		{"no pod", at("", ""), "GPU-a", container{Allocation: allocation(a)}, true, Host},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &picture{containers: map[string]container{"c": tt.container}}
			s := sighting{Process: registry.Process{PID: 1, InnerPID: 7, Place: tt.place}, uuid: tt.uuid, apis: gpu.Compute}
			kind, ok := p.judge(s, func(registry.Process) bool { return tt.registered }, 0)
			if kind != tt.want || ok != (tt.want == "") {
				t.Errorf("got %q, %v", kind, ok)
			}
		})
	}
}

// TestJudgeByAPI checks that a process that uses graphics or video APIs in a container with limits
// bypasses the limits, registered or not. The configuration may allow the APIs.
func TestJudgeByAPI(t *testing.T) {
	a := placement.Device{UUID: "GPU-a", MemoryBytes: 1000 * mib}
	const both = gpu.Graphics | gpu.Video
	tests := []struct {
		name       string
		apis       gpu.APIs
		allowed    gpu.APIs
		whole      bool
		registered bool
		want       Kind // "" for a process that is allowed
	}{
		{"draws", gpu.Graphics, 0, false, false, Bypass},
		{"draws, and claims to compute", gpu.Graphics, 0, false, true, Bypass},
		{"computes and draws", gpu.Compute | gpu.Graphics, 0, false, true, Bypass},
		{"computes and encodes", gpu.Compute | gpu.Video, gpu.Graphics, false, true, Bypass},
		{"draws on a whole GPU", gpu.Graphics, 0, true, false, ""},
		{"draws, allowed", gpu.Graphics, gpu.Graphics, false, false, ""},
		{"draws and decodes, allowed", both, both, false, false, ""},
		{"draws and decodes, half allowed", both, gpu.Video, false, false, Bypass},
		{"computes and draws, allowed", gpu.Compute | gpu.Graphics, both, false, true, ""},
		{"computes and draws, allowed, without the interposer", gpu.Compute | gpu.Graphics, both, false, false, Bypass},
		{"not reported", 0, both, false, false, Bypass},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &picture{containers: map[string]container{"c": {Allocation: allocation(a), interposed: !tt.whole}}}
			s := sighting{Process: registry.Process{PID: 1, InnerPID: 7, Place: at("u", "c")}, uuid: "GPU-a", apis: tt.apis}
			kind, ok := p.judge(s, func(registry.Process) bool { return tt.registered }, tt.allowed)
			if kind != tt.want || ok != (tt.want == "") {
				t.Errorf("got %q, %v", kind, ok)
			}
		})
	}
}

func TestAllowed(t *testing.T) {
	for want, capabilities := range map[gpu.APIs][]string{
		0:                        config.Default().Injection.DriverCapabilities,
		gpu.Graphics:             {"compute", "display"},
		gpu.Video:                {"compute", "video", "compat32"},
		gpu.Graphics | gpu.Video: config.Capabilities,
	} {
		if got := Allowed(capabilities); got != want {
			t.Errorf("%q allow %q, want %q", capabilities, got.Names(), want.Names())
		}
	}
}

func TestCompare(t *testing.T) {
	const limit = 1000 * mib
	tests := []struct {
		name          string
		held          []uint64 // by process, MiB
		before, after limits.Usage
		want          bool
	}{
		{"as it reports", []uint64{300}, usage(7, 300*mib, 0), usage(7, 300*mib, 0), false},
		{"it is about to get it", []uint64{300}, usage(7, 0, 300*mib), usage(7, 0, 300*mib), false},
		{"it got more meanwhile", []uint64{800}, usage(7, 100*mib, 0), usage(7, 800*mib, 0), false},
		{"it freed some meanwhile", []uint64{800}, usage(7, 800*mib, 0), usage(7, 100*mib, 0), false},
		{"within the noise", []uint64{364}, usage(7, 300*mib, 0), usage(7, 300*mib, 0), false},
		{"beyond the noise", []uint64{365}, usage(7, 300*mib, 0), usage(7, 300*mib, 0), true},
		{"the noise of two", []uint64{300, 128}, usage(7, 300*mib, 0), usage(7, 300*mib, 0), false},
		{"forged", []uint64{300, 300}, usage(7, 0, 0), usage(7, 0, 0), true},
		{"the page is broken", []uint64{300}, limits.Usage{}, limits.Usage{}, true},
		{"beyond its limit, whatever it reports", []uint64{1065}, usage(7, 1<<50, 0), usage(7, 1<<50, 0), true},
		{"nobody is there", nil, usage(7, 300*mib, 0), usage(7, 300*mib, 0), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &picture{answered: map[string]bool{"GPU-a": true}, containers: map[string]container{
				"c": {Allocation: allocation(placement.Device{UUID: "GPU-a", MemoryBytes: limit}), interposed: true, before: tt.before, after: tt.after},
			}}
			var sum uint64
			for i, held := range tt.held {
				sum += held * mib
				p.sightings = append(p.sightings,
					sighting{registry.Process{PID: i, Place: at("u", "c")}, "GPU-a", held * mib, gpu.Compute},
					// The processes on another GPU and in another container do not count.
					sighting{registry.Process{PID: i, Place: at("u", "c")}, "GPU-b", 1 << 40, gpu.Compute},
					sighting{registry.Process{PID: i, Place: at("u", "d")}, "GPU-a", 1 << 40, gpu.Compute})
			}
			found := p.compare()
			if (len(found) == 1) != tt.want || tt.want && found[0].held != sum {
				t.Errorf("got %+v", found)
			}
			p.answered = nil
			if found := p.compare(); len(found) != 0 {
				t.Errorf("on a GPU that did not answer: %+v", found)
			}
			c := p.containers["c"]
			c.interposed, p.containers["c"], p.answered = false, c, map[string]bool{"GPU-a": true}
		})
	}
}

// TestCompareExplainsGraphics checks that graphics memory counts, and explains the difference to
// the usage page.
func TestCompareExplainsGraphics(t *testing.T) {
	for name, tt := range map[string]struct {
		draws     uint64
		claimed   uint64
		found     bool
		explained bool
	}{
		"little":           {60 * mib, 300 * mib, false, false},
		"much":             {400 * mib, 300 * mib, true, true},
		"beside a lie":     {400 * mib, 100 * mib, true, false},
		"beyond its limit": {800 * mib, 300 * mib, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &picture{
				answered: map[string]bool{"GPU-a": true},
				containers: map[string]container{"c": {
					Allocation: allocation(placement.Device{UUID: "GPU-a", MemoryBytes: 1000 * mib}), interposed: true, after: usage(7, tt.claimed, 0),
				}},
				sightings: []sighting{
					{registry.Process{PID: 1, Place: at("u", "c")}, "GPU-a", 300 * mib, gpu.Compute},
					{registry.Process{PID: 2, Place: at("u", "c")}, "GPU-a", tt.draws, gpu.Graphics},
				},
			}
			found := p.compare()
			if (len(found) == 1) != tt.found || tt.found && (found[0].explained != tt.explained || found[0].held != 300*mib+tt.draws) {
				t.Errorf("got %+v", found)
			}
		})
	}
}

func TestConfirm(t *testing.T) {
	earlier := []mismatch{{"c", 0, 100, 10, false, false}, {"c", 1, 100, 10, false, false}, {"d", 0, 100, 10, false, false}}
	later := []mismatch{{"c", 0, 90, 20, false, true}, {"d", 1, 100, 10, false, false}, {"e", 0, 100, 10, false, false}}
	if got := confirmMismatches(earlier, later); len(got) != 1 || got[0] != (mismatch{"c", 0, 90, 20, false, false}) {
		t.Errorf("got %+v", got)
	}
	f := func(pid int, started uint64, uuid string) finding {
		return finding{sighting: sighting{registry.Process{PID: pid, Started: started}, uuid, 0, gpu.Compute}, kind: Host}
	}
	got := confirmFindings([]finding{f(1, 1, "a"), f(2, 1, "a"), f(3, 1, "a")}, []finding{f(1, 1, "a"), f(2, 2, "a"), f(3, 1, "b")})
	if len(got) != 1 || got[0].PID != 1 {
		t.Errorf("got %+v", got)
	}
}
