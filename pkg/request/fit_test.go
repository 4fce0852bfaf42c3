// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

func TestRoomsOf(t *testing.T) {
	gpus := make([]gpu.GPU, 3)
	for i := range gpus {
		gpus[i] = gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 1000 * MiB, Healthy: true}
	}
	for _, uuid := range []string{"MIG-0", "MIG-1"} {
		gpus = append(gpus, gpu.GPU{UUID: uuid, Index: 3, MemoryBytes: 1000 * MiB, Healthy: true, MIG: gpu.MIG{Parent: "GPU-3"}})
	}
	whole := Left{Memory: 1000 * MiB, ComputePPM: Whole}
	for name, tt := range map[string]struct {
		left map[string]Left
		want string
	}{
		"nothing":                {nil, ""},
		"an empty GPU":           {map[string]Left{"GPU-1": whole}, "1a 1000 100 100"},
		"a GPU of another node":  {map[string]Left{"GPU-7": whole}, ""},
		"a full GPU":             {map[string]Left{"GPU-1": {ComputePPM: Whole}}, ""},
		"a GPU without slots":    {map[string]Left{"GPU-1": {Memory: MiB, ComputePPM: Whole, SlotsTaken: 10}}, ""},
		"less than a percent":    {map[string]Left{"GPU-1": {Memory: 9*MiB + 1, ComputePPM: Whole/100 - 1}}, "1a 9 0 0"},
		"three equal GPUs":       {map[string]Left{"GPU-0": whole, "GPU-1": whole, "GPU-2": whole}, "1a 1000 100 100, 2a 1000 100 100"},
		"the lesser of two":      {map[string]Left{"GPU-0": whole, "GPU-1": {Memory: 600 * MiB, ComputePPM: Whole / 2}}, "1a 1000 100 100, 2a 600 60 50"},
		"neither is the larger":  {map[string]Left{"GPU-0": {Memory: 600 * MiB, ComputePPM: Whole / 2}, "GPU-1": {Memory: 500 * MiB, ComputePPM: Whole}}, "1a 600 60 50, 1b 500 50 100, 2a 500 50 50"},
		"two MIG devices":        {map[string]Left{"MIG-0": whole, "MIG-1": whole}, "1a 1000 100 100"},
		"two GPUs and a device":  {map[string]Left{"GPU-0": {Memory: 10 * MiB}, "GPU-1": {Memory: 10 * MiB}, "MIG-1": whole}, "1a 1000 100 100, 2a 10 1 0"},
		"an exclusive GPU apart": {map[string]Left{"GPU-0": {Memory: 10 * MiB, ComputePPM: 0}}, "1a 10 1 0"},
	} {
		t.Run(name, func(t *testing.T) {
			labels := RoomsOf(gpus, tt.left, config.Default()).Labels()
			got := map[string]string{}
			for label, value := range labels {
				size, dimension, ok := strings.Cut(strings.TrimPrefix(label, "nri-vgpu.io/fit-"), "-")
				if !ok {
					t.Errorf("the label %s=%s", label, value)
				}
				got[size+dimension] = value
			}
			var text []string
			for _, n := range FitCounts() {
				for _, size := range FitSizes() {
					if key := fmt.Sprint(n, size); got[key+"memory"] != "" {
						text = append(text, fmt.Sprint(key, " ", got[key+"memory"], " ", got[key+"percent"], " ", got[key+"cores"]))
					}
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(text, ", ")); diff != "" || len(labels) != 3*len(text) {
				t.Errorf("%v:\n%s", labels, diff)
			}
		})
	}
}

// TestRoomsOfSeveralGPUsShareAlike checks that no room of several GPUs consists of GPUs with and
// without the Multi-Process Service, because no container gets both.
func TestRoomsOfSeveralGPUsShareAlike(t *testing.T) {
	var gpus []gpu.GPU
	left := map[string]Left{}
	for i := range 5 {
		g := gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 1000 * MiB, Healthy: true}
		gpus = append(gpus, g)
		left[g.UUID] = Left{Memory: uint64(100*(i+1)) * MiB, ComputePPM: Whole}
	}
	cfg := config.Default()
	cfg.Sharing.Method, cfg.Sharing.MPSGPUs, cfg.Sharing.MPS.ReservedMemoryMiB = config.ShareByMPS, []string{"GPU-1", "GPU-4"}, 0
	rooms := RoomsOf(gpus, left, cfg)
	for shape, want := range map[string]bool{
		"1-500-0-0": true, "2-300-0-0": true, "2-301-0-0": false, "3-100-0-0": false, "4-1-0-0": false,
	} {
		if got := rooms.FitsShape(shape); got != want {
			t.Errorf("%s fits: %t, in %v", shape, got, rooms)
		}
	}
}

// TestRoomsOfManyGPUs checks that a pod with more than eight GPUs fits only nodes on which each of the
// GPUs has room.
func TestRoomsOfManyGPUs(t *testing.T) {
	var gpus []gpu.GPU
	left := map[string]Left{}
	for i := range MaxGPUs {
		gpus = append(gpus, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 1000 * MiB, Healthy: true})
		left[gpus[i].UUID] = Left{Memory: 500 * MiB, ComputePPM: Whole}
		rooms := RoomsOf(gpus, left, config.Default())
		for asked := 1; asked <= MaxGPUs; asked++ {
			if fits := rooms.FitsShape(fmt.Sprint(asked, "-500-0-0")); fits && asked > i+1 || !fits && asked == i+1 && slices.Contains(FitCounts(), asked) {
				t.Errorf("a pod with %d GPUs fits %d GPUs: %t", asked, i+1, fits)
			}
		}
	}
}

func TestLargest(t *testing.T) {
	rooms := []Room{{10, 10, 50}, {40, 40, 20}, {30, 30, 30}, {30, 30, 10}, {20, 20, 60}, {1, 99, 100}}
	for n, want := range map[int][]Room{
		1: {{40, 40, 20}, {30, 30, 30}, {20, 20, 60}, {1, 99, 100}},
		2: {{30, 30, 20}, {20, 20, 30}, {10, 10, 50}, {1, 40, 20}, {1, 20, 60}, {1, 30, 30}},
		6: {{1, 10, 10}},
		8: nil,
	} {
		order := cmpopts.SortSlices(func(a, b Room) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
		if diff := cmp.Diff(want, largest(rooms, n), order, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%d GPUs:\n%s", n, diff)
		}
	}
}

// TestRoomsByDefinition compares the rooms of random GPUs with their definition. A request fits a
// room if and only if enough GPUs have the requested amounts.
func TestRoomsByDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var rooms []Room
		for range 1 + r.IntN(MaxGPUs) {
			rooms = append(rooms, Room{r.Int64N(5), r.Int64N(5), r.Int64N(5)})
		}
		for _, n := range FitCounts() {
			all := largest(rooms, n)
			for range 50 {
				asked := Room{r.Int64N(6), r.Int64N(6), r.Int64N(6)}
				have := 0
				for _, one := range rooms {
					if one.Holds(asked) {
						have++
					}
				}
				if got := slices.ContainsFunc(all, func(one Room) bool { return one.Holds(asked) }); got != (have >= n) {
					t.Fatalf("%d GPUs with %v: %t, and of %v %d have it", n, asked, got, rooms, have)
				}
			}
			for _, one := range fewest(slices.Clone(all)) {
				if !slices.Contains(all, one) {
					t.Fatalf("the room %v is none of %v", one, all)
				}
			}
		}
	}
}

// TestFewest checks that the largest room of each dimension is kept.
func TestFewest(t *testing.T) {
	rooms := []Room{{90, 10, 10}, {80, 20, 20}, {70, 30, 90}, {10, 95, 5}, {5, 5, 99}, {60, 60, 50}}
	got := fewest(slices.Clone(rooms))
	for _, want := range []Room{{90, 10, 10}, {10, 95, 5}, {5, 5, 99}, {70, 30, 90}} {
		if !slices.Contains(got, want) {
			t.Errorf("%v is missing in %v", want, got)
		}
	}
	if len(got) != len(FitSizes()) {
		t.Errorf("%d rooms: %v", len(got), got)
	}
}

func TestFitsShape(t *testing.T) {
	rooms := Rooms{1: {{6000, 60, 50}, {4000, 40, 100}}, 2: {{4000, 40, 50}}}
	for shape, want := range map[string]bool{
		"1-6000-0-0": true, "1-6001-0-0": false, "1-6000-0-50": true, "1-6000-0-51": false, "1-4000-0-100": true,
		"1-0-60-0": true, "1-0-61-0": false, "2-4000-0-50": true, "2-4001-0-0": false, "3-1-0-0": false, "9-0-0-0": false,
		"1-6001-0-0.2-4000-0-0": true, "1-6001-0-0.2-4001-0-0": false, "": false, "x": false, "1-1": false, "1-1-1-1-1": false,
	} {
		if got := rooms.FitsShape(shape); got != want {
			t.Errorf("%q fits: %t", shape, got)
		}
	}
}

func TestShapeOf(t *testing.T) {
	expression := func(key string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}}}
	}
	for want, terms := range map[string][]corev1.NodeSelectorTerm{
		"":           {expression("zone"), {}},
		"1-4096-0-0": {expression("zone"), expression(FitHeld + "1-4096-0-0"), expression(FitHeld + "other")},
	} {
		pod := podOf(container("c", asks{}))
		if got := ShapeOf(pod); got != "" {
			t.Errorf("without an affinity: %q", got)
		}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
		if got := ShapeOf(pod); got != want {
			t.Errorf("%v: %q, want %q", terms, got, want)
		}
		pod.Spec.Affinity = FitAffinity(pod.Spec.Affinity)
		if got := ShapeOf(pod); got != want {
			t.Errorf("%v, reduced: %q, want %q", terms, got, want)
		}
	}
}

// TestTurnsAreCounted checks that pods keep their turns in every mode of scheduling, even without a
// request for GPUs.
func TestTurnsAreCounted(t *testing.T) {
	cfg := config.Default()
	turn := podOf(container("c", asks{FitTurn: "1"}))
	if used := Used([]*corev1.Pod{turn}, cfg.Dialects); used[FitTurn] != 1 {
		t.Errorf("the pod uses %v", used)
	}
	if worth := Capacity([]gpu.GPU{{UUID: "a", MemoryBytes: 1 << 30, Healthy: true}}, cfg); worth[FitTurn] != 0 {
		t.Errorf("the GPU is worth %v", worth)
	}
}
