// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// resizable returns a ledger of a GPU with 16 GiB and two pods. Pod "p" has an init container with 4
// GiB, a container "a" with 6 GiB and 30 %, and a container "b" with 2 GiB. Pod "q" has 5 GiB and 50 %.
func resizable(t *testing.T) *Ledger {
	t.Helper()
	l := New(gpus(16), config.Default())
	for _, p := range []request.Pod{
		pod("p", initc("i", mem(4)), app("a", memAndCores(6, 30)), app("b", mem(2))),
		pod("q", app("a", memAndCores(5, 50))),
	} {
		if got := placeAll(l, p); strings.HasPrefix(got, "no ") {
			t.Fatal(got)
		}
	}
	return l
}

func TestResize(t *testing.T) {
	for _, tt := range []struct {
		name      string
		container string
		share     request.Share
		free      uint64 // GiB afterwards
		compute   uint32 // free percent afterwards
		noRoom    bool
	}{
		{"nothing changes", "a", memAndCores(6, 30), 3, 20, false},
		{"all free memory", "a", memAndCores(9, 30), 0, 20, false},
		{"more than the free memory", "a", memAndCores(10, 30), 3, 20, true},
		{"all free time", "a", memAndCores(6, 50), 3, 0, false},
		{"more than the free time", "a", memAndCores(6, 51), 3, 20, true},
		{"less of both, but not than the init container", "a", memAndCores(1, 10), 7, 40, false},
		{"less memory and too much time", "a", memAndCores(1, 60), 3, 20, true},
		{"a first limit on time", "b", memAndCores(2, 20), 3, 0, false},
		{"no limit on time any more", "a", mem(6), 3, 50, false},
		{"an init container within its pod's load", "i", mem(8), 3, 20, false},
		{"an init container beyond its pod's load", "i", mem(11), 0, 20, false},
		{"an init container beyond the GPU", "i", mem(12), 3, 20, true},
		{"less than the init container has, which holds its part", "b", mem(1), 4, 20, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := resizable(t)
			a, err := l.Resize("p", tt.container, []request.Share{tt.share})
			var none *NoRoomError
			if errors.As(err, &none) != tt.noRoom || err != nil && none == nil {
				t.Errorf("got %v", err)
			}
			if room := l.Free()[0]; room.FreeMemoryBytes != tt.free*gib || room.FreeComputePPM != tt.compute*10_000 {
				t.Errorf("free: %s, want %d GiB and %d %%", room, tt.free, tt.compute)
			}
			held, _ := l.Get("p", tt.container)
			changed := held.Devices[0].MemoryBytes == tt.share.Memory.Bytes && held.Devices[0].ComputePPM == tt.share.ComputePPM && held.Resized
			if changed == tt.noRoom || err == nil && !slices.Equal(a.Devices, held.Devices) {
				t.Errorf("the container holds %+v, and Resize returned %+v", held, a)
			}
			checkBooks(t, l)
		})
	}
}

// TestResizeEndsRefusals checks that a pod that found no room finds room after another pod's resize.
func TestResizeEndsRefusals(t *testing.T) {
	l := resizable(t)
	p := pod("r", app("a", mem(7)))
	p.Version = "1"
	if _, err := l.Place(p, "a"); err == nil {
		t.Fatal("placed on a full GPU")
	}
	if _, err := l.Resize("p", "a", []request.Share{memAndCores(1, 30)}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Place(p, "a"); err != nil {
		t.Error(err)
	}
}

func TestPartsThatCannotBeResized(t *testing.T) {
	var never *InfeasibleError
	exclusive, common, moreSlots, raised, raisedMore := mem(4), mem(4), mem(4), mem(4), mem(5)
	raised.Limit, raisedMore.Limit = mem(8).Memory, mem(8).Memory
	exclusive.Exclusive = true
	common.Memory = request.Memory{Common: true}
	moreSlots.Slots = 2
	mps := config.Default()
	mps.Sharing.Method = config.ShareByMPS
	for _, tt := range []struct {
		name      string
		cfg       config.Config
		has, want []request.Share
		why       string
	}{
		{"MPS", mps, []request.Share{mem(4)}, []request.Share{mem(5)}, "MPS"},
		{"an exclusive GPU", config.Default(), []request.Share{exclusive}, []request.Share{exclusive}, "exclusively"},
		{"a GPU to become exclusive", config.Default(), []request.Share{mem(4)}, []request.Share{exclusive}, "exclusively"},
		{"memory in common", config.Default(), []request.Share{common}, []request.Share{mem(4)}, "share its memory"},
		{"memory to hold in common", config.Default(), []request.Share{mem(4)}, []request.Share{common}, "share its memory"},
		{"a raised limit", config.Default(), []request.Share{raised}, []request.Share{raisedMore}, "raises the limit"},
		{"a request above its raised limit", config.Default(), []request.Share{raised}, []request.Share{mem(9)}, "raises the limit"},
		{"slots", config.Default(), []request.Share{mem(4)}, []request.Share{moreSlots}, "slots"},
		{"more than the GPU", config.Default(), []request.Share{mem(4)}, []request.Share{mem(17)}, "GPU 0 has 16384 MiB"},
		{"a divided share", config.Default(), []request.Share{mem(4)}, []request.Share{mem(2), mem(2)}, "several GPUs"},
		{"nothing", config.Default(), nil, []request.Share{mem(2)}, "holds no part"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := New(gpus(16), tt.cfg)
			placeAll(l, pod("p", app("a", tt.has...)))
			before := l.Allocations()
			for name, resize := range map[string]func(string, string, []request.Share) (Allocation, error){"Resize": l.Resize, "TryResize": l.TryResize, "PlanResize": l.PlanResize} {
				if _, err := resize("p", "a", tt.want); !errors.As(err, &never) || !strings.Contains(err.Error(), tt.why) {
					t.Errorf("%s: got %v, want %q", name, err, tt.why)
				}
			}
			if !slices.EqualFunc(before, l.Allocations(), func(a, b Allocation) bool { return slices.Equal(a.Devices, b.Devices) }) {
				t.Errorf("the ledger has changed to %+v", l.Allocations())
			}
		})
	}
}

// TestResizeAfterAChangeOfSharing checks that a container cannot be resized if the container or its GPU
// uses MPS.
func TestResizeAfterAChangeOfSharing(t *testing.T) {
	mps := config.Default()
	mps.Sharing.Method = config.ShareByMPS
	for _, change := range [][2]config.Config{{mps, config.Default()}, {config.Default(), mps}} {
		before := New(gpus(16), change[0])
		placeAll(before, pod("p", app("a", mem(4))))
		after := New(gpus(16), change[1])
		for _, a := range before.Allocations() {
			if err := after.Restore(a); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := after.Resize("p", "a", []request.Share{mem(5)}); err == nil || !strings.Contains(err.Error(), "MPS") {
			t.Errorf("from %q to %q: %v", change[0].Sharing.Method, change[1].Sharing.Method, err)
		}
	}
}

// TestPlanResizeChangesNothing checks that PlanResize computes sizes without room and without effect.
func TestPlanResizeChangesNothing(t *testing.T) {
	l := resizable(t)
	a, err := l.PlanResize("p", "a", []request.Share{memAndCores(16, 100)})
	if err != nil || a.Devices[0].MemoryBytes != 16*gib || a.Devices[0].ComputePPM != request.Whole || !a.Resized {
		t.Errorf("got %+v, %v", a, err)
	}
	if held, _ := l.Get("p", "a"); held.Resized || held.Devices[0].MemoryBytes != 6*gib {
		t.Errorf("the container holds %+v", held)
	}
}

// TestResizeOnGPUsThatHaveLost checks that parts may become smaller and not larger on an unhealthy GPU,
// and on a GPU whose capacity was reduced.
func TestResizeOnGPUsThatHaveLost(t *testing.T) {
	for name, lost := range map[string]gpu.GPU{
		"health": {UUID: "GPU-0", MemoryBytes: 16 * gib},
		"memory": {UUID: "GPU-0", MemoryBytes: 8 * gib, Healthy: true},
	} {
		l := resizable(t)
		l.SetGPUs([]gpu.GPU{lost})
		var none *NoRoomError
		if _, err := l.Resize("p", "a", []request.Share{memAndCores(7, 30)}); !errors.As(err, &none) {
			t.Errorf("%s: grown: %v", name, err)
		}
		if _, err := l.Resize("p", "a", []request.Share{memAndCores(5, 30)}); err != nil {
			t.Errorf("%s: not shrunk: %v", name, err)
		}
	}
	l := resizable(t)
	l.SetGPUs([]gpu.GPU{{UUID: "GPU-0", MemoryBytes: 4 * gib, Healthy: true}})
	if _, err := l.Resize("p", "a", []request.Share{memAndCores(5, 30)}); err != nil {
		t.Errorf("a part that is larger than the GPU does not shrink: %v", err)
	}
	l.SetGPUs(nil)
	if _, err := l.Resize("p", "a", []request.Share{mem(1)}); !errors.As(err, new(*InfeasibleError)) {
		t.Errorf("without the GPU: %v", err)
	}
}

// TestAdoptKeepsResizedParts checks that the sizes at a container's creation, which the runtime knows,
// do not override resized parts.
func TestAdoptKeepsResizedParts(t *testing.T) {
	four, six, elsewhere := Device{UUID: "GPU-0", MemoryBytes: 4 * gib}, Device{UUID: "GPU-0", MemoryBytes: 6 * gib}, Device{UUID: "GPU-1", MemoryBytes: 4 * gib}
	for _, tt := range []struct {
		name                  string
		held, told            Device
		heldResized, replaced bool
	}{
		{"resized after its creation", six, four, true, false},
		{"never resized", six, four, false, true},
		{"on another GPU", six, elsewhere, true, true},
	} {
		l := New(gpus(16, 16), config.Default())
		held, told := given("p", "a", 0, tt.held), given("p", "a", 0, tt.told)
		held.Resized = tt.heldResized
		if err := l.Restore(held); err != nil {
			t.Fatal(err)
		}
		replaced, err := l.Adopt(told)
		if err != nil || replaced != tt.replaced {
			t.Errorf("%s: replaced %t, %v", tt.name, replaced, err)
		}
		want := tt.held
		if tt.replaced {
			want = tt.told
		}
		if a, _ := l.Get("p", "a"); a.Devices[0] != want {
			t.Errorf("%s: holds %+v", tt.name, a)
		}
	}
}

// TestTryResizeChangesNothing checks that TryResize reports whether there is room, and has no effect.
func TestTryResizeChangesNothing(t *testing.T) {
	l := resizable(t)
	if a, err := l.TryResize("p", "a", []request.Share{memAndCores(9, 30)}); err != nil || a.Devices[0].MemoryBytes != 9*gib {
		t.Errorf("with room: %+v, %v", a, err)
	}
	var none *NoRoomError
	if _, err := l.TryResize("p", "a", []request.Share{memAndCores(10, 30)}); !errors.As(err, &none) {
		t.Errorf("without room: %v", err)
	}
	if held, _ := l.Get("p", "a"); held.Resized || held.Devices[0].MemoryBytes != 6*gib {
		t.Errorf("the container holds %+v", held)
	}
}

// TestSetResized checks that SetResized replaces sizes without a check, and adds no container.
func TestSetResized(t *testing.T) {
	l := resizable(t)
	a, _ := l.Get("p", "a")
	a.Devices[0].MemoryBytes, a.Resized = 20*gib, true
	l.SetResized(a)
	if held, _ := l.Get("p", "a"); !held.Resized || held.Devices[0].MemoryBytes != 20*gib || l.Free()[0].FreeMemoryBytes != 0 {
		t.Errorf("the container holds %+v", held)
	}
	a.Container = "other"
	l.SetResized(a)
	if _, ok := l.Get("p", "other"); ok || len(l.Pod("p")) != 3 {
		t.Errorf("the pod holds %+v", l.Pod("p"))
	}
}

// TestPlacedShares checks that the sizes at a container's placement survive resizes, and plan the
// container's devices at its placement.
func TestPlacedShares(t *testing.T) {
	part, common, whole := memAndCores(6, 30), request.Share{Memory: request.Memory{Common: true}, Slots: 1}, mem(16)
	part.MaximumPPM, whole.Exclusive = 500_000, true
	for name, share := range map[string]request.Share{"a part": part, "memory in common": common, "an exclusive GPU": whole} {
		l := New(gpus(16), config.Default())
		placeAll(l, pod("p", app("a", share)))
		placed, _ := l.Get("p", "a")
		a := placed
		for range 2 {
			if got := l.cards[0].device(a.PlacedShares()[0]); got != placed.Devices[0] {
				t.Errorf("%s: planned %+v, placed %+v", name, got, placed.Devices[0])
			}
			a = clone(a)
			a.MarkResized()
			a.Devices[0].MemoryBytes = 1
		}
	}
	if got := (Allocation{Resized: true, Devices: []Device{{UUID: "GPU-0"}}}).PlacedShares(); got != nil {
		t.Errorf("resized by an older agent: %+v", got)
	}
}
