// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const gib = request.GiB

// gpus returns healthy GPUs "GPU-0", "GPU-1", … of the given sizes in GiB.
func gpus(sizes ...uint64) []gpu.GPU {
	all := make([]gpu.GPU, len(sizes))
	for i, size := range sizes {
		all[i] = gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, MemoryBytes: size * gib, Healthy: true}
	}
	return all
}

func mem(n uint64) request.Share {
	return request.Share{Memory: request.Memory{Bytes: n * gib}, Slots: 1}
}

func memAndCores(n uint64, percent uint32) request.Share {
	s := mem(n)
	s.ComputePPM = percent * 10_000
	return s
}

func part(percent uint32) request.Share {
	return request.Share{Memory: request.Memory{PPM: percent * 10_000}, ComputePPM: percent * 10_000}
}

var whole = request.Share{Memory: request.Memory{PPM: request.Whole}, ComputePPM: request.Whole, Exclusive: true}

func app(name string, shares ...request.Share) request.Container {
	return request.Container{Name: name, Kind: request.App, Shares: shares}
}

func initc(name string, shares ...request.Share) request.Container {
	return request.Container{Name: name, Kind: request.Init, Shares: shares}
}

func sidecar(name string, shares ...request.Share) request.Container {
	return request.Container{Name: name, Kind: request.Sidecar, Shares: shares}
}

func pod(uid string, containers ...request.Container) request.Pod {
	return request.Pod{UID: uid, Namespace: "ns", Name: uid, Containers: containers}
}

// placeAll places every container of a pod. placeAll returns the GPUs of each container, as
// "a:0 b:0,1", or the container that found no room, as "no a".
func placeAll(l *Ledger, p request.Pod) string {
	var got []string
	for _, c := range p.Containers {
		a, err := l.Place(p, c.Name)
		var none *NoRoomError
		if errors.As(err, &none) {
			return "no " + none.Container
		}
		if err != nil {
			return err.Error()
		}
		var on []string
		for _, d := range a.Devices {
			on = append(on, strings.TrimPrefix(d.UUID, "GPU-"))
		}
		got = append(got, c.Name+":"+strings.Join(on, ","))
	}
	return strings.Join(got, " ")
}

// with returns a pod that chooses a policy.
func with(policy string, p request.Pod) request.Pod {
	p.Policy = policy
	return p
}

func TestPlace(t *testing.T) {
	spread := func(c *config.Config) { c.Placement.Policy = config.PlaceSpread }
	fewSlots := func(c *config.Config) { c.Node.SlotsPerGPU = 2 }
	reserve := func(c *config.Config) { c.Node.ReservedMemoryMiB = 1024 }
	common := request.Share{Memory: request.Memory{Common: true}, ComputePPM: 500_000}
	onlyOn := func(s request.Share, uuids ...string) request.Share {
		s.GPUs = uuids
		return s
	}
	tests := []struct {
		name   string
		gpus   []gpu.GPU
		config func(*config.Config)
		pods   []request.Pod
		want   []string
	}{
		{name: "packing fills the first GPU", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(8))), pod("q", app("a", mem(8))), pod("r", app("a", mem(1)))},
			want: []string{"a:0", "a:0", "a:1"}},
		{name: "packing prefers a GPU in use to a small empty one", gpus: gpus(80, 8),
			pods: []request.Pod{pod("p", app("a", mem(10))), pod("q", app("a", mem(4)))},
			want: []string{"a:0", "a:0"}},
		{name: "packing takes the smallest empty GPU that will do", gpus: gpus(80, 8),
			pods: []request.Pod{pod("p", app("a", mem(4)))}, want: []string{"a:1"}},
		{name: "packing takes the fullest", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(4))), pod("q", app("a", mem(14))), pod("r", app("a", mem(2)))},
			want: []string{"a:0", "a:1", "a:1"}},
		{name: "spreading takes the emptiest", gpus: gpus(16, 16), config: spread,
			pods: []request.Pod{pod("p", app("a", mem(4))), pod("q", app("a", mem(2))), pod("r", app("a", mem(1)))},
			want: []string{"a:0", "a:1", "a:1"}},
		{name: "packing goes by time where memory is equal", gpus: gpus(16, 16),
			pods: []request.Pod{
				pod("p", app("a", onlyOn(memAndCores(4, 20), "GPU-0"))), pod("q", app("a", onlyOn(memAndCores(4, 30), "GPU-1"))),
				pod("r", app("a", memAndCores(1, 70)))},
			want: []string{"a:0", "a:1", "a:1"}},
		{name: "packing goes by index where all is equal", gpus: gpus(16, 16), pods: []request.Pod{pod("p", app("a", mem(1)))}, want: []string{"a:0"}},
		{name: "spreading goes by time where memory is equal", gpus: gpus(16, 16), config: spread,
			pods: []request.Pod{
				pod("p", app("a", onlyOn(memAndCores(4, 30), "GPU-0"))), pod("q", app("a", onlyOn(memAndCores(4, 20), "GPU-1"))),
				pod("r", app("a", memAndCores(1, 10)))},
			want: []string{"a:0", "a:1", "a:1"}},
		{name: "a pod that spreads takes the emptiest", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(4))), with(config.PlaceSpread, pod("q", app("a", mem(1)))), pod("r", app("a", mem(1)))},
			want: []string{"a:0", "a:1", "a:0"}},
		{name: "a pod that packs takes the fullest", gpus: gpus(16, 16), config: spread,
			pods: []request.Pod{pod("p", app("a", mem(4))), with(config.PlaceBinpack, pod("q", app("a", mem(1)))), pod("r", app("a", mem(1)))},
			want: []string{"a:0", "a:0", "a:1"}},
		{name: "spreading takes one that nobody is on where all is equal", gpus: gpus(16, 8), config: spread,
			pods: []request.Pod{
				pod("p", app("a", onlyOn(request.Share{Memory: request.Memory{Bytes: 8 * gib}}, "GPU-0"))),
				pod("q", app("a", mem(1)))},
			want: []string{"a:0", "a:1"}},
		{name: "spreading goes by index where all is equal", gpus: gpus(16, 16), config: spread,
			pods: []request.Pod{pod("p", app("a", mem(1)))}, want: []string{"a:0"}},
		{name: "two that add up to the GPU, and a third", gpus: gpus(16),
			pods: []request.Pod{pod("p", app("a", mem(10))), pod("q", app("a", mem(6))), pod("r", app("a", mem(1)))},
			want: []string{"a:0", "a:0", "no a"}},
		{name: "reserved memory is nobody's", gpus: gpus(16), config: reserve,
			pods: []request.Pod{pod("p", app("a", mem(16))), pod("q", app("a", mem(15)))},
			want: []string{"no a", "a:0"}},
		{name: "compute adds up to 100 %", gpus: gpus(16, 16),
			pods: []request.Pod{
				pod("p", app("a", memAndCores(1, 60))), pod("q", app("a", memAndCores(1, 40))),
				pod("r", app("a", memAndCores(1, 1))), pod("s", app("a", mem(1)))},
			want: []string{"a:0", "a:0", "a:1", "a:0"}},
		{name: "slots bound the containers of a GPU", gpus: gpus(16, 16), config: fewSlots,
			pods: []request.Pod{
				pod("p", app("a", mem(1)), app("b", mem(1))), pod("q", app("a", mem(1))), pod("r", app("a", part(10)))},
			want: []string{"a:0 b:0", "a:1", "a:0"}},
		{name: "no memory requests the whole", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", request.Share{Memory: request.Memory{PPM: request.Whole}, Slots: 1})),
				pod("q", app("a", mem(1)))},
			want: []string{"a:0", "a:1"}},

		{name: "containers of a pod share a GPU, though the fuller one has room for the first", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(8))), pod("q", app("a", mem(8)), app("b", mem(4)))},
			want: []string{"a:0", "a:1 b:1"}},
		{name: "containers of a pod part when they must", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(10)), app("b", mem(10)))}, want: []string{"a:0 b:1"}},
		{name: "a poor first choice is taken back", gpus: gpus(16, 12),
			pods: []request.Pod{pod("p", app("a", mem(10)), app("b", mem(14)))}, want: []string{"a:1 b:0"}},
		{name: "all of a pod or nothing", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(10)), app("b", mem(10)), app("c", mem(10))), pod("q", app("a", mem(16)))},
			want: []string{"no c", "a:0"}},

		{name: "shares of a container are on GPUs of their own", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(2), mem(2)))}, want: []string{"a:0,1"}},
		{name: "all shares or none", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(2), mem(2), mem(2))), pod("q", app("a", mem(16), mem(16)))},
			want: []string{"no a", "a:0,1"}},
		{name: "shares of different size find the GPUs that fit", gpus: gpus(8, 16),
			pods: []request.Pod{pod("p", app("a", mem(6), mem(12)))}, want: []string{"a:0,1"}},
		{name: "two containers with two GPUs each", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(2), mem(2)), app("b", mem(4), mem(4)))}, want: []string{"a:0,1 b:0,1"}},

		{name: "an init container's GPU is used again", gpus: gpus(16),
			pods: []request.Pod{pod("p", initc("i", mem(12)), initc("j", mem(16)), app("a", mem(8)), app("b", mem(8)))},
			want: []string{"i:0 j:0 a:0 b:0"}},
		{name: "an init container's GPU stays the pod's", gpus: gpus(16),
			pods: []request.Pod{pod("p", initc("i", mem(12)), app("a", mem(2))), pod("q", app("a", mem(5))), pod("r", app("a", mem(4)))},
			want: []string{"i:0 a:0", "no a", "a:0"}},
		{name: "a sidecar adds up", gpus: gpus(16),
			pods: []request.Pod{pod("p", sidecar("s", mem(8)), initc("i", mem(10)), app("a", mem(1)))},
			want: []string{"no i"}},
		{name: "a sidecar adds up only to what follows", gpus: gpus(16),
			pods: []request.Pod{pod("p", initc("i", mem(10)), sidecar("s", mem(8)), app("a", mem(8)))},
			want: []string{"i:0 s:0 a:0"}},
		{name: "an ephemeral container gets nothing", gpus: gpus(16),
			pods: []request.Pod{pod("p", request.Container{Name: "e", Kind: request.Ephemeral, Shares: []request.Share{mem(1)}}),
				pod("q", app("a", mem(16)))},
			want: []string{"e:", "a:0"}},
		{name: "who requests nothing gets nothing", gpus: gpus(16),
			pods: []request.Pod{pod("p", app("a"), app("b", mem(1)))}, want: []string{"a: b:0"}},

		{name: "exclusive wants an empty GPU and keeps others off", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", mem(1))), pod("q", app("a", whole)), pod("r", app("a", mem(1)))},
			want: []string{"a:0", "a:1", "a:0"}},
		{name: "exclusive without the memory", gpus: gpus(16),
			pods: []request.Pod{pod("p", app("a", request.Share{Memory: request.Memory{Bytes: gib}, Exclusive: true})),
				pod("q", app("a", mem(1)))},
			want: []string{"a:0", "no a"}},
		{name: "exclusive keeps the pod's own off", gpus: gpus(16),
			pods: []request.Pod{pod("p", app("a", request.Share{Memory: request.Memory{Bytes: gib}, Exclusive: true}), app("b", mem(1)))},
			want: []string{"no b"}},
		{name: "an exclusive GPU of an init container is used again", gpus: gpus(16),
			pods: []request.Pod{pod("p", initc("i", whole), app("a", whole))}, want: []string{"i:0 a:0"}},

		{name: "memory in common among containers that request it", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", common)), pod("q", app("a", mem(1))), pod("r", app("a", common)), pod("s", app("a", common))},
			want: []string{"a:0", "a:1", "a:0", "no a"}},
		{name: "named GPUs only", gpus: gpus(16, 16),
			pods: []request.Pod{pod("p", app("a", onlyOn(mem(10), "GPU-1"))), pod("q", app("a", onlyOn(mem(10), "GPU-1")))},
			want: []string{"a:1", "no a"}},
		{name: "no GPUs", pods: []request.Pod{pod("p", app("a", mem(1)))}, want: []string{"no a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Default()
			if tt.config != nil {
				tt.config(&cfg)
			}
			l := New(tt.gpus, cfg)
			for i, p := range tt.pods {
				if got := placeAll(l, p); got != tt.want[i] {
					t.Errorf("pod %s: got %q, want %q", p.UID, got, tt.want[i])
				}
			}
		})
	}
}

// TestDivide requests 8 of 10 shares while half of each GPU is in use. Place must divide the
// request into 5 and 3 shares.
func TestDivide(t *testing.T) {
	l := New(gpus(16, 16), config.Default())
	half := part(50)
	half.GPUs = []string{"GPU-1"}
	placeAll(l, pod("p", app("a", half)))
	half.GPUs = []string{"GPU-0"}
	placeAll(l, pod("q", app("a", half)))

	eight := part(80)
	eight.SplitPPM = 100_000
	got, err := l.Place(pod("r", app("a", eight)), "a")
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{
		{UUID: "GPU-0", MemoryBytes: 8 * gib, ComputePPM: 500_000},
		{UUID: "GPU-1", MemoryBytes: request.Memory{PPM: 300_000}.On(16 * gib), ComputePPM: 300_000},
	}
	if diff := cmp.Diff(want, got.Devices); diff != "" {
		t.Error(diff)
	}
	if got := placeAll(l, pod("s", app("a", eight))); got != "no a" {
		t.Errorf("a second of 8: got %q, want no room", got)
	}
}

func TestPlaceIsIdempotent(t *testing.T) {
	l := New(gpus(16), config.Default())
	p := pod("p", app("a", mem(10)))
	first, err := l.Place(p, "a")
	if err != nil {
		t.Fatal(err)
	}
	want := Allocation{PodUID: "p", Namespace: "ns", Pod: "p", Container: "a", Kind: request.App,
		Devices: []Device{{UUID: "GPU-0", MemoryBytes: 10 * gib, Slots: 1}}}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Fatal(diff)
	}
	sick := gpus(16)
	sick[0].Healthy = false
	l.SetGPUs(sick)
	first.Devices[0].MemoryBytes = 0 // the ledger must not share the caller's copy
	again, err := l.Place(p, "a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("a restart on a GPU that has fallen ill: %s", diff)
	}
}

func TestUnhealthyTakesNoNew(t *testing.T) {
	l := New(gpus(16, 16), config.Default())
	placeAll(l, pod("p", app("a", mem(1))))
	sick := gpus(16, 16)
	sick[0].Healthy = false
	l.SetGPUs(sick)
	if got := placeAll(l, pod("q", app("a", mem(1)))); got != "a:1" {
		t.Errorf("got %q, want the healthy GPU", got)
	}
	l.SetGPUs(gpus(16, 16))
	if got := placeAll(l, pod("r", app("a", mem(15)))); got != "a:0" {
		t.Errorf("got %q, want the GPU that has recovered, with what it held", got)
	}
}

func TestRelease(t *testing.T) {
	l := New(gpus(16), config.Default())
	placeAll(l, pod("p", app("a", mem(16))))
	l.Release("p")
	l.Release("never seen")
	if got := placeAll(l, pod("q", app("a", mem(16)))); got != "a:0" {
		t.Errorf("got %q, want the room of the released pod", got)
	}
}

func TestNoRoomErrorNamesWhatIsFree(t *testing.T) {
	all := gpus(16, 16, 16)
	all[1].Healthy = false
	l := New(all, config.Default())
	placeAll(l, pod("p", app("a", whole)))
	placeAll(l, pod("q", app("a", memAndCores(14, 30))))
	_, err := l.Place(pod("r", app("big", memAndCores(4, 25))), "big")
	const want = `no GPU has room for container "big" of pod ns/r, which requests 4096 MiB and 25 % of the time of one GPU; ` +
		"free: GPU 0 (GPU-0): allocated as a whole; GPU 1 (GPU-1): unhealthy; GPU 2 (GPU-2): 2048 MiB, 70 % of the time, 9 slots"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	// One GPU of the node has room for one of two parts.
	_, err = l.Place(pod("r", app("two", mem(2), mem(2))), "two")
	if err == nil || !strings.Contains(err.Error(), "which requests 2048 MiB of one GPU as one of 2 parts, each on another GPU; free: ") {
		t.Errorf("for two GPUs: %v", err)
	}
	if _, err := l.Place(pod("r", app("a")), "b"); err == nil || !strings.Contains(err.Error(), `no container "b"`) {
		t.Errorf("got %v for a container that the pod has not", err)
	}
}

func TestDescribe(t *testing.T) {
	tests := []struct {
		share request.Share
		want  string
	}{
		{request.Share{Memory: request.Memory{GiB: 2}}, "2 GiB of one GPU"},
		{request.Share{Memory: request.Memory{Common: true}, ComputePPM: 500_000}, "memory in common and 50 % of the time of one GPU"},
		{request.Share{Memory: request.Memory{PPM: 20_833}}, "2.0833 % of the memory of one GPU"},
		{whole, "100 % of the memory and 100 % of the time of one GPU without other containers"},
		{request.Share{Memory: request.Memory{PPM: 500_000}, GPUs: []string{"GPU-1", "GPU-2"}},
			"50 % of the memory of one GPU out of GPU-1, GPU-2"},
	}
	for _, tt := range tests {
		if got := Describe(tt.share); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	good := Allocation{PodUID: "p", Container: "a", Kind: request.App, Devices: []Device{{UUID: "GPU-0", MemoryBytes: gib}}}
	tests := []struct {
		name   string
		change func(*Allocation)
	}{
		{"no pod", func(a *Allocation) { a.PodUID = "" }},
		{"no container", func(a *Allocation) { a.Container = "" }},
		{"no kind", func(a *Allocation) { a.Kind = "" }},
		{"no UUID", func(a *Allocation) { a.Devices[0].UUID = "" }},
		{"too much memory", func(a *Allocation) { a.Devices[0].MemoryBytes = 1 << 51 }},
		{"more memory than can be", func(a *Allocation) { a.Devices[0].MemoryBytes = 1<<50 + 1 }},
		{"too high a limit", func(a *Allocation) { a.Devices[0].LimitBytes = 1<<50 + 1 }},
		{"fewer slots than none", func(a *Allocation) { a.Devices[0].Slots = -1 }},
		{"too much compute", func(a *Allocation) { a.Devices[0].ComputePPM = request.Whole + 1 }},
		{"a maximum that is the guarantee", func(a *Allocation) { a.Devices[0].ComputePPM, a.Devices[0].MaximumPPM = 5, 5 }},
		{"a maximum of more than all", func(a *Allocation) { a.Devices[0].MaximumPPM = request.Whole + 1 }},
		{"too much memory at its placement", func(a *Allocation) { a.Placed = []Device{{UUID: "GPU-0", MemoryBytes: 1 << 51}} }},
		{"other devices", func(a *Allocation) { a.Devices[0].MemoryBytes = 2 * gib }},
	}
	l := New(gpus(16), config.Default())
	for range 2 { // a second identical Restore is not a contradiction
		if err := l.Restore(good); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range tests {
		bad := clone(good)
		tt.change(&bad)
		if err := l.Restore(bad); err == nil {
			t.Errorf("%s: accepted", tt.name)
		}
	}
	most := Device{UUID: "GPU-1", MemoryBytes: 1 << 50, LimitBytes: 1 << 50, ComputePPM: request.Whole}
	if err := New(nil, config.Default()).Restore(given("p", "a", 0, most, Device{UUID: "GPU-2", MaximumPPM: request.Whole})); err != nil {
		t.Errorf("the most that can be: %v", err)
	}
	if got := l.Allocations(); len(got) != 1 || !slices.Equal(got[0].Devices, good.Devices) {
		t.Errorf("the ledger has %+v", got)
	}
}

// TestRestoreIsAFact checks that Restore records an allocation beyond the capacity or on a missing
// GPU, and that the allocations occupy capacity.
func TestRestoreIsAFact(t *testing.T) {
	l := New(gpus(16), config.Default())
	for i, d := range []Device{{UUID: "GPU-0", MemoryBytes: 12 * gib}, {UUID: "GPU-0", MemoryBytes: 12 * gib}, {UUID: "GPU-9", MemoryBytes: gib}} {
		err := l.Restore(Allocation{PodUID: fmt.Sprint(i), Container: "a", Kind: request.App, Devices: []Device{d}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := placeAll(l, pod("p", app("a", mem(1)))); got != "no a" {
		t.Errorf("got %q on an over-committed GPU", got)
	}
	if free := l.Free()[0].FreeMemoryBytes; free != 0 {
		t.Errorf("%d bytes are free, want 0", free)
	}
	l.Release("0")
	if got := placeAll(l, pod("p", app("a", mem(4)))); got != "a:0" {
		t.Errorf("got %q, want the room of the released pod", got)
	}
}

// TestPlaceAfterRestore simulates a restart of the agent between a pod's containers.
func TestPlaceAfterRestore(t *testing.T) {
	p := pod("p", initc("i", mem(10)), app("a", mem(10)))
	l := New(gpus(16, 16), config.Default())
	err := l.Restore(Allocation{PodUID: "p", Container: "i", Kind: request.Init,
		Devices: []Device{{UUID: "GPU-1", MemoryBytes: 10 * gib, Slots: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := placeAll(l, p); got != "i:1 a:1" {
		t.Errorf("got %q, want the init container's GPU for both", got)
	}
	if a, ok := l.Get("p", "a"); !ok || a.Position != 1 {
		t.Errorf("Get returned %+v, %v", a, ok)
	}
	if got := l.Free()[1].FreeMemoryBytes; got != 6*gib {
		t.Errorf("%d bytes free, want 6 GiB", got)
	}
}

// TestMaxima checks that a maximum takes no capacity from other pods, and that Place divides a
// maximum with its share. On an MPS card the maximum is 0.
func TestMaxima(t *testing.T) {
	part := func(ppm, maximum uint32) request.Share {
		return request.Share{Memory: request.Memory{PPM: ppm}, ComputePPM: ppm, MaximumPPM: maximum, SplitPPM: 100_000}
	}
	for _, tt := range []struct {
		name  string
		share request.Share
		full  bool // half of each GPU is in use
		mps   bool
		want  []uint32
	}{
		{"a part", part(200_000, 500_000), false, false, []uint32{500_000}},
		{"none", part(200_000, 0), false, false, []uint32{0}},
		{"spread over two GPUs", part(800_000, 1_000_000), true, false, []uint32{625_000, 375_000}},
		{"by MPS", part(200_000, 500_000), false, true, []uint32{0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Default()
			if tt.mps {
				cfg.Sharing.Method = config.ShareByMPS
			}
			l := New(gpus(16, 16), cfg)
			if tt.full {
				placeAll(l, pod("x", app("a", part(500_000, 0), part(500_000, 0))))
			}
			a, err := l.Place(pod("p", app("a", tt.share)), "a")
			if err != nil {
				t.Fatal(err)
			}
			var got []uint32
			var kept uint32
			for _, d := range a.Devices {
				got = append(got, d.MaximumPPM)
				kept += d.ComputePPM
			}
			if !slices.Equal(got, tt.want) || kept != tt.share.ComputePPM {
				t.Errorf("the maxima are %d, want %d; %d ppm are kept", got, tt.want, kept)
			}
		})
	}
}

// TestAllocationsWithoutMaximum decodes allocations with the policy that agents older than
// MaximumPPM wrote.
func TestAllocationsWithoutMaximum(t *testing.T) {
	const written = `{"podUID":"u","container":"c","kind":"app","devices":[{"uuid":"a","computePPM":300000},{"uuid":"b"},` +
		`{"uuid":"c","computePPM":1000000},{"uuid":"d","computePPM":300000,"mps":true}]%s}`
	for policy, want := range map[string][]uint32{`,"share":true`: {request.Whole, 0, 0, 0}, "": {0, 0, 0, 0}} {
		var a Allocation
		if err := json.Unmarshal(fmt.Appendf(nil, written, policy), &a); err != nil {
			t.Fatal(err)
		}
		for i, d := range a.Devices {
			if d.MaximumPPM != want[i] {
				t.Errorf("%q: the maximum on GPU %s is %d ppm, want %d", policy, d.UUID, d.MaximumPPM, want[i])
			}
		}
		if err := New(nil, config.Default()).Restore(a); err != nil || a.PodUID != "u" {
			t.Errorf("%q: read %+v, %v", policy, a, err)
		}
	}
}

// TestLimitsAboveWhatIsAskedFor checks that a limit above the request takes no capacity from other
// pods, and does not exceed the GPU's memory.
func TestLimitsAboveWhatIsAskedFor(t *testing.T) {
	part := func(ppm, limit uint32) request.Share {
		return request.Share{Memory: request.Memory{PPM: ppm}, Limit: request.Memory{PPM: limit}, SplitPPM: 100_000}
	}
	bytes := func(n, limit uint64) request.Share {
		return request.Share{Memory: request.Memory{Bytes: n * gib}, Limit: request.Memory{Bytes: limit * gib}}
	}
	for _, tt := range []struct {
		name  string
		share request.Share
		want  []uint64 // limits, GiB
	}{
		{"a part", part(250_000, 500_000), []uint64{8}},
		{"bytes", bytes(4, 12), []uint64{12}},
		{"more than the GPU has", bytes(4, 32), []uint64{16}},
		{"no more than requested", part(250_000, 250_000), []uint64{4}},
		{"spread over two GPUs", part(1_000_000, 1_500_000), []uint64{12, 12}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := New(gpus(16, 16), config.Default())
			if len(tt.want) == 2 { // leave half of each GPU
				placeAll(l, pod("x", app("a", mem(8))))
				placeAll(l, pod("y", app("a", request.Share{Memory: request.Memory{Bytes: 8 * gib}, GPUs: []string{"GPU-1"}})))
			}
			before := l.Free()
			a, err := l.Place(pod("p", app("a", tt.share)), "a")
			if err != nil {
				t.Fatal(err)
			}
			var taken, kept uint64
			var got []uint64
			for i, room := range l.Free() {
				taken += before[i].FreeMemoryBytes - room.FreeMemoryBytes
			}
			for _, d := range a.Devices {
				got = append(got, d.Limit()/gib)
				kept += d.MemoryBytes
			}
			if !slices.Equal(got, tt.want) || taken != kept || kept != tt.share.Memory.On(16*gib) {
				t.Errorf("limits are %d GiB, want %d; %d bytes taken and %d kept", got, tt.want, taken, kept)
			}
		})
	}
}

// TestEmptiedHasRoom checks that a GPU has room again once it is healthy and empty, whatever occupies
// the GPU now.
func TestEmptiedHasRoom(t *testing.T) {
	whole := request.Share{Memory: request.Memory{Bytes: 16 * gib}, ComputePPM: request.Whole, Slots: 3, Exclusive: true}
	for name, r := range map[string]Room{
		"unhealthy":        {MemoryBytes: 16 * gib},
		"held exclusively": {MemoryBytes: 16 * gib, Healthy: true, Exclusive: true, Holders: 1},
		"memory in common": {MemoryBytes: 16 * gib, Healthy: true, Common: true, Holders: 1},
		"full, with MPS":   {MemoryBytes: 16 * gib, Healthy: true, MPS: true, Holders: 48},
	} {
		if r.Lacks(whole, 1) == "" {
			t.Errorf("%s: it has room now", name)
		}
		if lacks := r.Emptied().Lacks(whole, 1); lacks != "" {
			t.Errorf("%s: once it is empty: %s", name, lacks)
		}
	}
	if (Room{MemoryBytes: 8 * gib, Healthy: true}).Emptied().Lacks(whole, 1) == "" {
		t.Error("an empty GPU has more memory than it has")
	}
}
