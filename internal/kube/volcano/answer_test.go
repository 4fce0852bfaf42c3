// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

func holds(container, uuid string, memory, ppm int) placement.Allocation {
	return placement.Allocation{PodUID: "uid", Container: container, Devices: []placement.Device{
		{UUID: uuid, MemoryBytes: uint64(memory) * mib, ComputePPM: uint32(ppm)},
	}}
}

func TestAnswer(t *testing.T) {
	const ids = "GPU-1,NVIDIA,1000,0:;GPU-2,NVIDIA,2000,0:"
	two := []corev1.Container{container("a", limits{"memory": 1000}), container("idle", nil), container("b", limits{"memory": 2000})}
	a, b := holds("a", "GPU-1", 1000, 0), holds("b", "GPU-2", 2000, 0)
	answered := func(toAllocate, phase string) map[string]string {
		all := assigned(ids)
		all[ToAllocate], all[Phase], all[Time] = toAllocate, phase, Answered
		return all
	}
	tests := []struct {
		name   string
		have   map[string]string
		held   []placement.Allocation
		failed bool
		want   map[string]string
	}{
		{"nothing yet", assigned(ids), nil, false, nil},
		{"one of two", assigned(ids), []placement.Allocation{a}, false, map[string]string{ToAllocate: ";GPU-2,NVIDIA,2000,0:"}},
		{"both", assigned(ids), []placement.Allocation{a, b}, false, map[string]string{ToAllocate: ";", Phase: Success, Time: Answered}},
		{"both, answered before", answered(";", Success), []placement.Allocation{a, b}, false, nil},
		{"refused", assigned(ids), nil, true, map[string]string{Phase: Failed, Time: Answered}},
		{"refused, answered before", answered(ids, Failed), nil, true, nil},
		{"refused, then given", answered(ids, Failed), []placement.Allocation{a, b}, false, map[string]string{ToAllocate: ";", Phase: Success}},
		{"given, then refused", answered(";", Success), []placement.Allocation{a, b}, true, map[string]string{Phase: Failed}},
		{"the list of GPUs to allocate is lost", with(assigned(ids), ToAllocate, "?"), []placement.Allocation{b}, false,
			map[string]string{ToAllocate: "GPU-1,NVIDIA,1000,0:;"}},
		{"known, and given nothing", assigned(ids), []placement.Allocation{{Container: "a"}, {Container: "b"}}, false, nil},
		{"nonsense", assigned("?"), nil, true, map[string]string{Phase: Failed, Time: Answered}},
		{"nonsense, not tried yet", assigned("?"), nil, false, nil},
		{"three containers", assigned(ids + ";"), []placement.Allocation{a, b}, false, nil},
		{"three containers, refused", assigned(ids + ";"), []placement.Allocation{a, b}, true, map[string]string{Phase: Failed, Time: Answered}},
		{"another node's", with(assigned(ids), Node, "there"), []placement.Allocation{a, b}, false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Answer(pod(tt.have, two...), config.Default().Dialects.Volcano, tt.held, tt.failed)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAnnounce checks that the announcement of a pod of another scheduler has the form of an
// assignment, so that Volcano's scheduler counts the pod.
func TestAnnounce(t *testing.T) {
	cfg := config.Default().Dialects.Volcano
	tests := []struct {
		name       string
		containers []corev1.Container
		held       []placement.Allocation
		want       string
	}{
		{"in Volcano's language", []corev1.Container{container("idle", nil), container("a", limits{"number": 1, "memory-percentage": 33})},
			[]placement.Allocation{{Container: "a", Devices: []placement.Device{{UUID: "GPU-1", MemoryBytes: 5406*mib + 700000, ComputePPM: 0}}}},
			"GPU-1,NVIDIA,5406,0:"},
		{"in another", []corev1.Container{container("a", limits{"nri-vgpu.io/vgpu-memory": 1}), container("b", limits{"nri-vgpu.io/vgpu-memory": 1})},
			[]placement.Allocation{holds("a", "GPU-1", 100, 333_333), holds("b", "GPU-2", 200, 200_000)},
			"GPU-1,NVIDIA,100,34:;GPU-2,NVIDIA,200,20:"},
		{"a GPU of its own", []corev1.Container{container("a", limits{"k8s.amazonaws.com/vgpu": 10})},
			[]placement.Allocation{{Container: "a", Devices: []placement.Device{{UUID: "GPU-1", MemoryBytes: 16384 * mib, Exclusive: true}}}},
			"GPU-1,NVIDIA,16384,100:"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := pod(nil, tt.containers...)
			want := map[string]string{Node: "here", IDs: tt.want, Phase: Success, Time: Answered}
			got := Announce(p, cfg, tt.held)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			p.Annotations = got
			if again := Announce(p, cfg, tt.held); again != nil {
				t.Errorf("and again %v", again)
			}
		})
	}
	if got := Announce(pod(nil, container("a", nil)), cfg, nil); got != nil {
		t.Errorf("nothing held, and announced as %v", got)
	}
}

func TestBoundAt(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0, "?": 0, "1700000000": 1700000000, "9223372036854775807": 9223372036854775807, "9223372036854775808": 0, "010": 10,
	} {
		if got := BoundAt(pod(map[string]string{BindTime: text})); got != want {
			t.Errorf("BoundAt of %q is %d, want %d", text, got, want)
		}
	}
}

func TestSettled(t *testing.T) {
	for phase, want := range map[string]bool{"": false, Allocating: false, Success: true, Failed: true} {
		if got := Settled(pod(map[string]string{Phase: phase})); got != want {
			t.Errorf("in phase %q settled is %t", phase, got)
		}
	}
}
