// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// given returns the allocation of a container with these devices.
func given(pod, container string, position int, devices ...Device) Allocation {
	return Allocation{PodUID: pod, Container: container, Kind: request.App, Position: position, Devices: devices}
}

// freeMemory returns the free memory of each GPU, in GiB.
func freeMemory(l *Ledger) []uint64 {
	var free []uint64
	for _, room := range l.Free() {
		free = append(free, room.FreeMemoryBytes/gib)
	}
	return free
}

func TestAdopt(t *testing.T) {
	four, six := Device{UUID: "GPU-0", MemoryBytes: 4 * gib, Slots: 1}, Device{UUID: "GPU-1", MemoryBytes: 6 * gib, Slots: 1}
	l := New(gpus(16, 16), config.Default())
	for _, step := range []struct {
		name     string
		adopt    Allocation
		replaced bool
		free     []uint64
	}{
		{"who has nothing", given("p", "a", 0), false, []uint64{16, 16}},
		{"who is new", given("p", "a", 0, four), false, []uint64{12, 16}},
		{"the same", given("p", "a", 0, four), false, []uint64{12, 16}},
		{"another of the pod", given("p", "b", 1, six), false, []uint64{12, 10}},
		{"the first, with something else", given("p", "a", 0, six), true, []uint64{16, 4}},
		{"the second, with nothing", given("p", "b", 1), true, []uint64{16, 10}},
	} {
		replaced, err := l.Adopt(step.adopt)
		if err != nil || replaced != step.replaced {
			t.Errorf("%s: replaced is %t, %v, want %t", step.name, replaced, err, step.replaced)
		}
		if diff := cmp.Diff(step.free, freeMemory(l)); diff != "" {
			t.Errorf("%s: free capacity (-want +got):\n%s", step.name, diff)
		}
	}
	if a, ok := l.Get("p", "a"); !ok || !slices.Equal(a.Devices, []Device{six}) {
		t.Errorf("the first holds %+v, %t", a, ok)
	}
	if replaced, err := l.Adopt(Allocation{Container: "a", Kind: request.App}); err == nil || replaced {
		t.Errorf("a container of no pod is adopted, and replaces: %t", replaced)
	}
}

// TestLedgerCopiesDevices checks that the ledger shares no memory with its callers.
func TestLedgerCopiesDevices(t *testing.T) {
	l := New(gpus(16), config.Default())
	restored, adopted := given("r", "a", 0, Device{UUID: "GPU-0", MemoryBytes: gib}), given("a", "a", 0, Device{UUID: "GPU-0", MemoryBytes: gib})
	if err := l.Restore(restored); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Adopt(adopted); err != nil {
		t.Fatal(err)
	}
	a, _ := l.Get("r", "a")
	for _, devices := range [][]Device{restored.Devices, adopted.Devices, a.Devices, l.Pod("r")[0].Devices, l.Allocations()[0].Devices} {
		devices[0].MemoryBytes = 0
	}
	for _, a := range l.Allocations() {
		if a.Devices[0].MemoryBytes != gib {
			t.Errorf("pod %s holds %d bytes, want %d", a.PodUID, a.Devices[0].MemoryBytes, gib)
		}
	}
}

// TestRefusalsEndWithWhatIsEntered checks that a refused pod finds room after Adopt has reduced
// another pod's allocation. The pod must also find room after Restore of an allocation to reuse.
func TestRefusalsEndWithWhatIsEntered(t *testing.T) {
	much, little := Device{UUID: "GPU-0", MemoryBytes: 16 * gib, Slots: 1}, Device{UUID: "GPU-0", MemoryBytes: gib}
	for name, enter := range map[string]func(l *Ledger) error{
		"adopted": func(l *Ledger) error { _, err := l.Adopt(given("holder", "a", 0, little)); return err },
		"restored": func(l *Ledger) error {
			before := given("waiting", "i", 0, much)
			before.Kind = request.Init
			return l.Restore(before)
		},
	} {
		l := New(gpus(16), config.Default())
		if err := l.Restore(given("holder", "a", 0, much)); err != nil {
			t.Fatal(err)
		}
		p := pod("waiting", initc("i", mem(16)), app("b", mem(8)))
		if name == "adopted" {
			p.Containers = p.Containers[1:]
		}
		p.Version = "1"
		if got := placeAll(l, p); got[:3] != "no " {
			t.Fatalf("%s: placed as %q on a full GPU", name, got)
		}
		if err := enter(l); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Place(p, "b"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLedgerLists(t *testing.T) {
	l := New(gpus(16), config.Default())
	some := Device{UUID: "GPU-0", MemoryBytes: gib}
	for _, a := range []Allocation{
		given("q", "a", 0, some), given("p", "c", 2, some), given("p", "b", 1, some), given("p", "a", 1, some), given("none", "a", 0),
	} {
		if err := l.Restore(a); err != nil {
			t.Fatal(err)
		}
	}
	var all, of []string
	for _, a := range l.Allocations() {
		all = append(all, a.PodUID+"/"+a.Container)
	}
	for _, a := range l.Pod("p") {
		of = append(of, a.Container)
	}
	for _, list := range []struct {
		name      string
		got, want []string
	}{
		{"allocations", all, []string{"p/a", "p/b", "p/c", "q/a"}},
		{"containers of a pod", of, []string{"a", "b", "c"}},
		{"holders", l.Holders(), []string{"p", "q"}},
	} {
		if diff := cmp.Diff(list.want, list.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", list.name, diff)
		}
	}
	for uid, want := range map[string]bool{"p": true, "q": true, "none": false, "unknown": false} {
		if got := l.Holds(uid); got != want {
			t.Errorf("pod %s holds something: %t, want %t", uid, got, want)
		}
	}
	if a, ok := l.Get("p", "d"); ok || len(a.Devices) != 0 {
		t.Errorf("a container that is unknown holds %+v", a)
	}
}

// TestReleaseLeavesNothing checks that the ledger leaks nothing, since the agent runs for months.
func TestReleaseLeavesNothing(t *testing.T) {
	l := New(gpus(16, 16), config.Default())
	placeAll(l, pod("p", app("a", mem(1)), app("b", mem(16))))
	placeAll(l, pod("q", app("a", mem(1))))
	l.Release("p")
	if len(l.pods) != 1 || len(l.taken) != 1 {
		t.Errorf("%d pods and %d GPUs are left, want one of each", len(l.pods), len(l.taken))
	}
	l.Release("q")
	if len(l.pods)+len(l.taken) != 0 {
		t.Errorf("%v and %v are left", l.pods, l.taken)
	}
}

func TestRememberedRefusalsAreBounded(t *testing.T) {
	l := New(nil, config.Default())
	refuse := func(i int) {
		p := pod(fmt.Sprint("pod", i), app("a", mem(1)))
		p.Version = "1"
		if _, err := l.Place(p, "a"); err == nil {
			t.Fatal("placed on no GPU")
		}
	}
	for i := range maxRefused {
		refuse(i)
	}
	if len(l.refused) != maxRefused {
		t.Errorf("%d refusals are remembered, want %d", len(l.refused), maxRefused)
	}
	if refuse(maxRefused); len(l.refused) != 1 {
		t.Errorf("%d refusals are remembered after one more, want 1", len(l.refused))
	}
}

func TestGPUsAreInOrder(t *testing.T) {
	l := New([]gpu.GPU{{UUID: "c", Index: 2}, {UUID: "b", Index: 1}, {UUID: "a", Index: 1}, {UUID: "d"}}, config.Default())
	var got []string
	for _, room := range l.Free() {
		got = append(got, room.UUID)
	}
	if want := []string{"d", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFree(t *testing.T) {
	all := gpus(16, 16, 16, 8)
	all[3].Healthy = false
	cfg := byMPS("GPU-1")
	cfg.Node.SlotsPerGPU, cfg.Sharing.MPS.ReservedMemoryMiB = 3, 1024
	l := New(all, cfg)
	on := func(uuid string, s request.Share) request.Share { s.GPUs = []string{uuid}; return s }
	common := request.Share{Memory: request.Memory{Common: true}}
	for _, p := range []request.Pod{
		pod("p", app("a", on("GPU-0", memAndCores(4, 30))), app("b", on("GPU-0", mem(2)))),
		pod("q", app("a", on("GPU-1", mem(5)))),
		pod("r", app("a", on("GPU-2", common)), app("b", on("GPU-2", common))),
	} {
		if got := placeAll(l, p); got[:3] == "no " {
			t.Fatal(got)
		}
	}
	want := []Room{
		{UUID: "GPU-0", Healthy: true, MemoryBytes: 16 * gib, FreeMemoryBytes: 10 * gib, FreeComputePPM: 700_000, FreeSlots: 1, FreeClients: 48, Holders: 2},
		{UUID: "GPU-1", Index: 1, Healthy: true, MemoryBytes: 15 * gib, FreeMemoryBytes: 10 * gib, FreeComputePPM: request.Whole, FreeSlots: 2,
			MPS: true, FreeClients: 47, Holders: 1},
		{UUID: "GPU-2", Index: 2, Healthy: true, MemoryBytes: 16 * gib, FreeComputePPM: request.Whole, FreeSlots: 3, FreeClients: 48, Holders: 2, Common: true},
		{UUID: "GPU-3", Index: 3, MemoryBytes: 8 * gib, FreeMemoryBytes: 8 * gib, FreeComputePPM: request.Whole, FreeSlots: 3, FreeClients: 48},
	}
	if diff := cmp.Diff(want, l.Free()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	beyond := Device{UUID: "GPU-1", MemoryBytes: gib, Slots: 9, ComputePPM: request.Whole, MPS: true, Exclusive: true}
	for i := range 50 {
		if err := l.Restore(given(fmt.Sprint("restored", i), "a", 0, beyond)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := l.Free()[1], (Room{UUID: "GPU-1", Index: 1, Healthy: true, MemoryBytes: 15 * gib, MPS: true, Holders: 51, Exclusive: true}); got != want {
		t.Errorf("beyond what there is: got %+v, want %+v", got, want)
	}
}

func TestLeft(t *testing.T) {
	all := gpus(16, 16, 16, 16, 16)
	all[3].Healthy = false
	l := New(all, byMPS("GPU-4"))
	on := func(uuid string, s request.Share) request.Share { s.GPUs = []string{uuid}; return s }
	half := request.Share{Memory: request.Memory{Common: true}, ComputePPM: 500_000}
	here := pod("here", app("a", on("GPU-0", memAndCores(4, 30))))
	placeAll(l, here)
	placeAll(l, pod("alone", app("a", on("GPU-1", whole))))
	before := l.Free()
	coming := []request.Pod{
		here, // the pod's first container has an allocation
		pod("huge", app("a", mem(17))),
		pod("next", app("a", on("GPU-0", memAndCores(8, 20)))),
		pod("common", app("a", on("GPU-2", half))),
		pod("client", app("a", on("GPU-4", mem(1)))),
	}
	want := map[string]request.Left{
		"GPU-0": {Memory: 4 * gib, ComputePPM: 500_000, SlotsTaken: 2, Held: true, Containers: 48},
		"GPU-2": {ComputePPM: 500_000, Held: true, Common: true, Containers: 48},
		"GPU-4": {Memory: 15*gib - 64*request.MiB, ComputePPM: request.Whole, SlotsTaken: 1, Held: true, Bounded: true, Containers: 47},
	}
	if diff := cmp.Diff(want, l.Left(coming)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, l.Free()); diff != "" {
		t.Errorf("the ledger has changed (-before +after):\n%s", diff)
	}
	want = map[string]request.Left{
		"GPU-0": {Memory: 12 * gib, ComputePPM: 700_000, SlotsTaken: 1, Held: true, Containers: 48},
		"GPU-2": {Memory: 16 * gib, ComputePPM: request.Whole, Containers: 48},
		"GPU-4": {Memory: 16*gib - 64*request.MiB, ComputePPM: request.Whole, Bounded: true, Containers: 48},
	}
	if diff := cmp.Diff(want, l.Left(nil)); diff != "" {
		t.Errorf("without coming pods (-want +got):\n%s", diff)
	}
}

// TestLeftTakesPoorChoicesBack checks that Left backtracks as Place does.
func TestLeftTakesPoorChoicesBack(t *testing.T) {
	l := New(gpus(16, 12), config.Default())
	left := l.Left([]request.Pod{pod("p", app("a", mem(10)), app("b", mem(14)))})
	if got := []uint64{left["GPU-0"].Memory / gib, left["GPU-1"].Memory / gib}; !slices.Equal(got, []uint64{2, 2}) {
		t.Errorf("%d GiB are left, want 2 of each GPU", got)
	}
}

// TestLeftSearchesForNobodyTwice checks that Left does not search for a pod that holds GPUs, or
// that the ledger has refused.
func TestLeftSearchesForNobodyTwice(t *testing.T) {
	l := New(gpus(16), config.Default())
	here, refused := pod("here", app("a", mem(1))), pod("refused", app("a", mem(16)))
	refused.Version = "1"
	placeAll(l, here)
	placeAll(l, refused)
	if tried := l.shadow().place([]request.Pod{here, refused}); tried != 0 {
		t.Errorf("%d tries, want none", tried)
	}
	if tried := l.shadow().place([]request.Pod{pod("new", app("a", mem(1)))}); tried != 1 {
		t.Errorf("%d tries for one that fits at once, want 1", tried)
	}
}

// TestHold checks that Hold records GPUs without enough room, and unhealthy GPUs.
func TestHold(t *testing.T) {
	all := gpus(16, 16)
	all[1].Healthy = false
	l := New(all, config.Default())
	on := func(uuid string, s request.Share) request.Share { s.GPUs = []string{uuid}; return s }
	for _, p := range []request.Pod{
		pod("p", app("a", on("GPU-0", mem(10)))),
		pod("q", app("a", on("GPU-0", mem(10))), app("b", on("GPU-1", mem(3)))),
	} {
		for range 2 { // a second Hold changes nothing
			if err := l.Hold(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rooms := l.Free(); rooms[0].FreeMemoryBytes != 0 || rooms[0].Holders != 2 || rooms[1].FreeMemoryBytes != 13*gib {
		t.Errorf("rooms %v", rooms)
	}
	for _, p := range []request.Pod{pod("r", app("a", mem(1))), pod("r", app("a", on("GPU-9", mem(1))))} {
		if err := l.Hold(p); err == nil || l.Holds("r") {
			t.Errorf("a pod that is bound to no GPU of the ledger is held: %v", err)
		}
	}
	l.Release("p")
	if rooms := l.Free(); rooms[0].FreeMemoryBytes != 6*gib {
		t.Errorf("after the release of a pod: %v", rooms)
	}
}

// TestFreedCapacityIsTakenLast checks that in the mode fit a pod gets capacity that was freed just now
// only if no other GPU has room.
func TestFreedCapacityIsTakenLast(t *testing.T) {
	const fits, sums = config.ScheduleByFit, config.ScheduleBySums
	for name, tt := range map[string]struct {
		mode, policy string
		after        time.Duration
		memory       uint64
		want         string
	}{
		"a GPU that was freed just now":  {fits, config.PlaceSpread, settling - 1, 4, "a:1"},
		"a pod that needs the freed GPU": {fits, config.PlaceSpread, 0, 16, "a:0"},
		"a GPU that was freed before":    {fits, config.PlaceSpread, settling, 4, "a:0"},
		"packing":                        {fits, config.PlaceBinpack, 0, 4, "a:1"},
		"another mode":                   {sums, config.PlaceSpread, 0, 4, "a:0"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Scheduling.Mode, cfg.Placement.Policy = tt.mode, tt.policy
			l, now := New(gpus(16, 16), cfg), time.Unix(0, 0)
			l.SetClock(func() time.Time { return now })
			placeAll(l, pod("ends", app("a", mem(16))))
			placeAll(l, pod("stays", app("a", mem(8))))
			l.Release("ends")
			now = now.Add(tt.after)
			bound := pod("bound", app("a", mem(tt.memory)))
			left := l.Left([]request.Pod{bound})
			if got := placeAll(l, bound); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if diff := cmp.Diff(l.Left(nil), left); diff != "" {
				t.Errorf("the trial placement differs:\n%s", diff)
			}
		})
	}
}
