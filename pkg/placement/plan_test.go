// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// state is the part of a ledger that decides the results of its methods.
type state struct {
	Allocations []Allocation
	Free        []Room
	Searches    uint64
	Refused     []string
}

func stateOf(l *Ledger) state {
	return state{l.Allocations(), l.Free(), l.Searches(), slices.Sorted(maps.Keys(l.refused))}
}

// TestPlanIsWhatPlaceDoes checks on random histories that Plan returns the allocations or the error
// of Place and the free part of the pod's GPUs. Plan must change nothing.
func TestPlanIsWhatPlaceDoes(t *testing.T) {
	found, none := 0, 0
	for seed := range runs {
		w := newWorld(seed)
		l := New(w.gpus(), w.config())
		for i := range 20 {
			p := w.pod(fmt.Sprint("pod", i))
			if i > 0 && w.IntN(4) == 0 {
				w.restore(t, l, p)
			}
			before := stateOf(l)
			planned, free, err := l.Plan(p)
			if diff := gocmp.Diff(before, stateOf(l)); diff != "" {
				t.Fatalf("seed %d, pod %d: Plan changed the ledger (-before +after):\n%s", seed, i, diff)
			}
			placed, placeErr := placeContainers(l.shadow(), p)
			if diff := gocmp.Diff(placed, planned, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("seed %d, pod %d: (-placed +planned)\n%s", seed, i, diff)
			}
			if diff := gocmp.Diff(asNoRoom(placeErr), asNoRoom(err)); diff != "" || (err == nil) != (placeErr == nil) {
				t.Fatalf("seed %d, pod %d: Place returns the error %v, and Plan %v", seed, i, placeErr, err)
			}
			if err != nil {
				none++
				continue
			}
			found++
			l.hold(p.UID, planned)
			if want := freeOf(l, planned); math.Abs(want-free) > 1e-9 {
				t.Fatalf("seed %d, pod %d: %v of the GPUs is free, and Plan returned %v", seed, i, want, free)
			}
		}
	}
	if found < runs || none < runs {
		t.Errorf("%d plans and %d refusals: the test tests nothing", found, none)
	}
}

// freeOf returns the mean part of the memory that is free on the GPUs of these allocations.
func freeOf(l *Ledger, allocations []Allocation) float64 {
	used := map[string]bool{}
	for _, a := range allocations {
		for _, d := range a.Devices {
			used[d.UUID] = true
		}
	}
	var sum, rooms float64
	for _, r := range l.Free() {
		if used[r.UUID] {
			sum += float64(r.FreeMemoryBytes) / float64(r.MemoryBytes)
			rooms++
		}
	}
	if rooms == 0 {
		return 0
	}
	return sum / rooms
}

func TestPlanFree(t *testing.T) {
	reserve := func(c *config.Config) { c.Node.ReservedMemoryMiB = 8 * 1024 }
	spread := func(c *config.Config) { c.Placement.Policy = config.PlaceSpread }
	common := request.Share{Memory: request.Memory{Common: true}, ComputePPM: 500_000}
	tests := []struct {
		name   string
		gpus   []gpu.GPU
		config func(*config.Config)
		before []request.Pod
		pod    request.Pod
		want   float64
	}{
		{"an empty GPU", gpus(16, 16), nil, nil, pod("p", app("a", mem(4))), 0.75},
		{"a GPU in use", gpus(16, 16), nil, []request.Pod{pod("o", app("a", mem(8)))}, pod("p", app("a", mem(4))), 0.25},
		{"an emptier GPU", gpus(16, 16), spread, []request.Pod{pod("o", app("a", mem(8)))}, pod("p", app("a", mem(4))), 0.75},
		{"the mean of two GPUs", gpus(16, 8), nil, nil, pod("p", app("a", mem(4), mem(4))), 0.625},
		{"two containers on a GPU", gpus(16), nil, nil, pod("p", app("a", mem(4)), app("b", mem(8))), 0.25},
		{"the largest that runs at a time", gpus(16), nil, nil, pod("p", initc("i", mem(12)), app("a", mem(4))), 0.25},
		{"a whole GPU", gpus(16, 16), nil, nil, pod("p", app("a", whole)), 0},
		{"memory in common", gpus(16, 16), nil, nil, pod("p", app("a", common)), 0},
		{"reserved memory is not free", gpus(16), reserve, nil, pod("p", app("a", mem(4))), 0.5},
		{"no container asks", gpus(16), nil, nil, pod("p", app("a")), 0},
		{"no GPU has memory", gpus(0), nil, nil, pod("p", app("a", part(10))), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Default()
			if tt.config != nil {
				tt.config(&cfg)
			}
			l := New(tt.gpus, cfg)
			for _, p := range tt.before {
				placeAll(l, p)
			}
			if _, free, err := l.Plan(tt.pod); err != nil || free != tt.want {
				t.Errorf("%v is free, %v; want %v", free, err, tt.want)
			}
		})
	}
}

func TestPlanWithoutRoom(t *testing.T) {
	l := New(gpus(16, 16), config.Default())
	placeAll(l, pod("o", app("a", mem(10))))
	p := pod("p", app("a", mem(4)), app("b", mem(17)))
	p.Version = "1"
	before := stateOf(l)
	all, free, err := l.Plan(p)
	var none *NoRoomError
	if !errors.As(err, &none) || none.Container != "b" || none.Share.Memory.Bytes != 17*gib || len(none.Free) != 2 || all != nil || free != 0 {
		t.Errorf("got %v, %v, %v", all, free, err)
	}
	if diff := gocmp.Diff(before, stateOf(l)); diff != "" {
		t.Errorf("Plan changed the ledger (-before +after):\n%s", diff)
	}
}

// TestPlanOfAPodThatHoldsGPUs checks that Plan keeps the allocations that a pod has.
func TestPlanOfAPodThatHoldsGPUs(t *testing.T) {
	l := New(gpus(16, 16), config.Default())
	p := pod("p", app("a", mem(4)), app("b", mem(4)))
	if err := l.Restore(given("p", "b", 1, Device{UUID: "GPU-1", MemoryBytes: 4 * gib, Slots: 1})); err != nil {
		t.Fatal(err)
	}
	all, free, err := l.Plan(p)
	if err != nil || len(all) != 2 || all[0].Devices[0].UUID != "GPU-1" || all[1].Devices[0].UUID != "GPU-1" || free != 0.5 {
		t.Fatalf("got %+v, %v, %v", all, free, err)
	}
	all[1].Devices[0].MemoryBytes = 0
	if held := l.Pod("p"); len(held) != 1 || held[0].Devices[0].MemoryBytes != 4*gib {
		t.Errorf("the pod holds %+v", held)
	}
}

// placeContainers places all containers of a pod, and returns the pod's allocations.
func placeContainers(l *Ledger, p request.Pod) ([]Allocation, error) {
	for _, c := range p.Containers {
		if c.Asks() {
			if _, err := l.Place(p, c.Name); err != nil {
				return nil, err
			}
		}
	}
	return l.Pod(p.UID), nil
}
