// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

const runs = 300 // random histories per property

// world draws random nodes and pods; equal seeds draw equal nodes and pods.
type world struct{ *rand.Rand }

func newWorld(seed int) world { return world{rand.New(rand.NewPCG(uint64(seed), 1))} }

func (w world) gpus() []gpu.GPU {
	all := gpus(make([]uint64, 1+w.IntN(4))...)
	for i := range all {
		all[i].MemoryBytes = (8 + w.Uint64N(25)) * gib
		all[i].Healthy = w.IntN(8) > 0
	}
	return all
}

func (w world) share() request.Share {
	s := request.Share{ComputePPM: w.Uint32N(11) * 100_000, Slots: w.IntN(2), Exclusive: w.IntN(10) == 0}
	switch w.IntN(6) {
	case 0:
		s.Memory.PPM = (1 + w.Uint32N(10)) * 100_000
		s.ComputePPM = s.Memory.PPM
		if !s.Exclusive && w.IntN(2) == 0 {
			s.SplitPPM = 100_000
		}
	case 1:
		s.Memory.GiB = 1 + w.Uint32N(16)
	case 2:
		s.Memory.Common = true
	default:
		s.Memory.Bytes = (1 + w.Uint64N(12)) * gib
	}
	if w.IntN(8) == 0 {
		s.GPUs = []string{"GPU-0", "GPU-2"}
	}
	return s
}

func (w world) pod(uid string) request.Pod {
	p := pod(uid)
	for i := range 1 + w.IntN(4) {
		c := request.Container{Name: fmt.Sprint("c", i), Kind: request.App}
		if len(p.Containers) == i && i < 2 && w.IntN(3) == 0 {
			c.Kind = []request.Kind{request.Init, request.Sidecar}[w.IntN(2)]
		}
		for range w.IntN(3) {
			c.Shares = append(c.Shares, w.share())
		}
		p.Containers = append(p.Containers, c)
	}
	p.Policy = []string{"", config.PlaceBinpack, config.PlaceSpread}[w.IntN(3)]
	// Init containers precede app containers.
	for i := 1; i < len(p.Containers); i++ {
		if p.Containers[i-1].Kind == request.App {
			p.Containers[i].Kind = request.App
		}
	}
	return p
}

func (w world) config() config.Config {
	cfg := config.Default()
	cfg.Node.SlotsPerGPU = 1 + w.IntN(8)
	cfg.Node.ReservedMemoryMiB = w.Uint64N(2) * 700
	if w.IntN(2) == 0 {
		cfg.Placement.Policy = config.PlaceSpread
	}
	return cfg
}

// checkBooks recomputes, independently of the ledger, the load that runs at the same
// time on each GPU. checkBooks reports each load above the capacity.
func checkBooks(t *testing.T, l *Ledger) {
	t.Helper()
	for _, c := range l.cards {
		var memory, compute uint64
		var slots, pods int
		var common, exclusive bool
		for uid, holds := range l.pods {
			containers := holds.containers
			var m, s, k uint64 // peaks of the pod
			for phase := range containers {
				var pm, ps, pk, n uint64
				var alone bool
				for i, a := range containers {
					if !runsIn(containers, phase, i) {
						continue
					}
					for _, d := range a.Devices {
						if d.UUID != c.UUID {
							continue
						}
						n++
						alone = alone || d.Exclusive
						common = common || d.MemoryInCommon
						if !d.MemoryInCommon {
							pm += d.MemoryBytes
						}
						ps += uint64(d.Slots)
						pk += uint64(d.ComputePPM)
					}
				}
				if alone && n > 1 {
					t.Errorf("pod %s: an exclusive container shares %s with one of its own pod", uid, c.UUID)
				}
				exclusive = exclusive || alone
				m, s, k = max(m, pm), max(s, ps), max(k, pk)
			}
			if onCard(containers, c.UUID) {
				pods++
			}
			memory, compute, slots = memory+m, compute+k, slots+int(s)
		}
		if common {
			memory += c.usable
		}
		if memory > c.usable || compute > request.Whole || slots > l.config.Node.SlotsPerGPU || exclusive && pods > 1 {
			t.Errorf("%s of %d bytes has %d bytes, %d ppm, %d of %d slots taken by %d pods, exclusive %v",
				c.UUID, c.usable, memory, compute, slots, l.config.Node.SlotsPerGPU, pods, exclusive)
		}
	}
}

// runsIn reports whether checkBooks counts the i-th container in the phase of the phase-th
// container.
func runsIn(containers []Allocation, phase, i int) bool {
	switch {
	case i == phase:
		return true
	case containers[i].Kind == request.Init:
		return false
	case containers[phase].Kind == request.Init:
		return i < phase
	default:
		return true
	}
}

func onCard(containers []Allocation, uuid string) bool {
	for _, a := range containers {
		for _, d := range a.Devices {
			if d.UUID == uuid {
				return true
			}
		}
	}
	return false
}

// checkAnswer compares a container's allocation with its request.
func checkAnswer(t *testing.T, c request.Container, a Allocation) {
	t.Helper()
	var asked, got uint64
	seen := make(map[string]bool)
	for _, d := range a.Devices {
		if seen[d.UUID] {
			t.Errorf("container %s has %s twice", c.Name, d.UUID)
		}
		seen[d.UUID] = true
		got += uint64(d.ComputePPM)
	}
	for _, s := range c.Shares {
		asked += uint64(s.ComputePPM)
	}
	if got != asked || len(a.Devices) < len(c.Shares) {
		t.Errorf("container %s requested %d shares and %d ppm and got %d and %d",
			c.Name, len(c.Shares), asked, len(a.Devices), got)
	}
}

// resize changes the sizes of a container of a pod at random. A change without growth always has room.
func (w world) resize(t *testing.T, l *Ledger, p request.Pod) {
	t.Helper()
	c := p.Containers[w.IntN(len(p.Containers))]
	held, ok := l.Get(p.UID, c.Name)
	if !ok || w.IntN(2) == 0 {
		return
	}
	shares := slices.Clone(c.Shares)
	for i := range shares {
		shares[i].Memory, shares[i].SplitPPM = request.Memory{Bytes: (1 + w.Uint64N(12)) * gib}, 0
		shares[i].ComputePPM = w.Uint32N(11) * 100_000
	}
	want, err := l.PlanResize(p.UID, c.Name, shares)
	if err != nil {
		return
	}
	grows := false
	for k, d := range want.Devices {
		grows = grows || d.MemoryBytes > held.Devices[k].MemoryBytes || d.ComputePPM > held.Devices[k].ComputePPM
	}
	if _, err := l.Resize(p.UID, c.Name, shares); err != nil && !grows {
		t.Errorf("pod %s, container %s: no room to shrink from %+v to %+v: %v", p.UID, c.Name, held.Devices, want.Devices, err)
	}
}

// TestNeverOvercommits replays random histories of created, resized and deleted pods and of unhealthy GPUs.
// TestNeverOvercommits checks the ledger by an independent account, and each verdict of Fits by
// Place. After the release of all pods, all GPUs must be free.
func TestNeverOvercommits(t *testing.T) {
	placed := 0
	for seed := range runs {
		w := newWorld(seed)
		all := w.gpus()
		l := New(all, w.config())
		empty := l.Free()
		for i := range 30 {
			p := w.pod(fmt.Sprint("pod", i))
			fits := l.Fits(p)
			for _, c := range p.Containers {
				a, err := l.Place(p, c.Name)
				if c.Asks() && fits != (err == nil) {
					t.Errorf("pod %s fits: %t; container %s: %v", p.Name, fits, c.Name, err)
				}
				if err == nil {
					placed += len(a.Devices)
					checkAnswer(t, c, a)
				}
			}
			w.resize(t, l, p)
			checkBooks(t, l)
			if w.IntN(3) == 0 {
				l.Release(fmt.Sprint("pod", w.IntN(i+1)))
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		for i := range 30 {
			l.Release(fmt.Sprint("pod", i))
		}
		if diff := cmp.Diff(empty, l.Free()); diff != "" || len(l.Allocations()) != 0 {
			t.Fatalf("seed %d: not empty again: %s", seed, diff)
		}
	}
	if placed < runs {
		t.Errorf("only %d devices placed in %d histories: the test tests nothing", placed, runs)
	}
}

// TestRestoreInAnyOrder checks that a ledger restored from another ledger's allocations, in any
// order, equals the other ledger and returns the same results afterwards.
func TestRestoreInAnyOrder(t *testing.T) {
	for seed := range runs {
		w := newWorld(seed)
		all, cfg := w.gpus(), w.config()
		before := New(all, cfg)
		for i := range 10 {
			placeAll(before, w.pod(fmt.Sprint("pod", i)))
		}
		after := New(all, cfg)
		allocations := before.Allocations()
		w.Shuffle(len(allocations), func(i, j int) {
			allocations[i], allocations[j] = allocations[j], allocations[i]
		})
		for _, a := range allocations {
			if err := after.Restore(a); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		if diff := cmp.Diff(before.Allocations(), after.Allocations()); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if diff := cmp.Diff(before.Free(), after.Free()); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		next := w.pod("next")
		if a, b := placeAll(before, next), placeAll(after, next); a != b {
			t.Fatalf("seed %d: the next pod goes to %q, after the restart to %q", seed, a, b)
		}
	}
}

// TestConcurrentUse adds and removes pods concurrently. The race detector and checkBooks
// detect errors.
func TestConcurrentUse(t *testing.T) {
	l := New(gpus(64, 64), config.Default())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			w := newWorld(i)
			for n := range 50 {
				p := w.pod(fmt.Sprintf("pod-%d-%d", i, n))
				placeAll(l, p)
				l.Free()
				l.Allocations()
				l.Release(p.UID)
			}
		})
	}
	wg.Wait()
	if left := l.Allocations(); len(left) != 0 {
		t.Errorf("%d allocations are left", len(left))
	}
}

// crowd returns a pod of MostAsking containers that each request share.
func crowd(kind request.Kind, share request.Share) request.Pod {
	p := pod("crowd")
	for i := range request.MostAsking {
		p.Containers = append(p.Containers, request.Container{Name: fmt.Sprint("c", i), Kind: kind, Shares: []request.Share{share}})
	}
	return p
}

// crowds returns the worst requests for n empty GPUs of 80 GiB. In some pods only the last
// container fits nowhere; in other pods a few containers fit nowhere.
func crowds(n int) map[string]request.Pod {
	little := request.Share{Memory: request.Memory{Bytes: request.MiB}}
	last := func(p request.Pod) request.Pod {
		p.Containers[len(p.Containers)-1].Shares = []request.Share{mem(1000)}
		return p
	}
	// Each GPU has room for one large container.
	large := crowd(request.App, little)
	for i := request.MostAsking - n - 1; i < request.MostAsking; i++ {
		large.Containers[i].Shares = []request.Share{{Memory: request.Memory{Bytes: 41 * gib}}}
	}
	return map[string]request.Pod{
		"apps, the last too large":  last(crowd(request.App, little)),
		"inits, the last too large": last(crowd(request.Init, little)),
		"apps, too many large ones": large,
		"sidecars, too many":        crowd(request.Sidecar, mem(1)),
	}
}

// crowded returns a configuration with few slots.
func crowded() config.Config {
	cfg := config.Default()
	cfg.Node.SlotsPerGPU = 3
	return cfg
}

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "the search for a pod's GPUs", documented.Count(searches*maxTries)+" tries", "remembers "+documented.Count(maxRefused)+" refusals")
}

// TestPlansAreBounded counts the tries of the search for a pod that does not fit.
func TestPlansAreBounded(t *testing.T) {
	for _, n := range []int{8, 16} {
		for name, p := range crowds(n) {
			l := New(gpus(slices.Repeat([]uint64{80}, n)...), crowded())
			search := l.planner(p)
			if search.solve(maxTries) {
				t.Fatalf("%s, on %d GPUs: found room for more than there is", name, n)
			}
			if most := maxTries + n*request.MostAsking; search.tried > most {
				t.Errorf("%s, on %d GPUs: %d tries, at most %d allowed", name, n, search.tried, most)
			}
		}
	}
}

// TestRefusalsAreRemembered checks that Place does not search again for a pod without room. Only
// the release of a pod or a change of the pod leads to another search.
func TestRefusalsAreRemembered(t *testing.T) {
	l := New(gpus(16), config.Default())
	placeAll(l, pod("holder", app("a", mem(10))))
	p := pod("waiting", app("a", mem(8)), app("b", mem(1)))
	p.Version = "1"
	searches := func(when string, want int) {
		t.Helper()
		before := l.Searches()
		for range 10 {
			for _, c := range p.Containers {
				if _, err := l.Place(p, c.Name); err == nil {
					t.Fatalf("%s: placed", when)
				}
			}
		}
		if got := l.Searches() - before; got != uint64(want) {
			t.Errorf("%s: %d searches, want %d", when, got, want)
		}
	}
	searches("at first", 1)
	placeAll(l, pod("another", app("a", mem(1))))
	searches("when less is left", 0)
	l.SetGPUs(gpus(16))
	searches("of the same GPUs", 0)
	p.Version = "2"
	searches("of another version", 1)
	l.Release("another")
	searches("when more is left", 1)
	l.SetGPUs(gpus(17))
	searches("of other GPUs", 1)
	p.Version = ""
	searches("of a version that is not known", 20)
	p.Version = "2"
	l.Release("holder")
	if got := placeAll(l, p); got != "a:0 b:0" {
		t.Errorf("with room: %s", got)
	}
}

// TestLeftIsBounded checks that pods that fit nowhere do not slow Left down.
func TestLeftIsBounded(t *testing.T) {
	l := New(gpus(slices.Repeat([]uint64{80}, 8)...), config.Default())
	var coming []request.Pod
	for i := range 64 {
		p := crowds(8)["apps, too many large ones"]
		p.UID = fmt.Sprint("pod", i)
		coming = append(coming, p)
	}
	most := leftTries + maxTries + len(coming)*(8+1)*request.MostAsking
	if tried := l.shadow().place(coming); tried > most {
		t.Errorf("%d tries, at most %d allowed", tried, most)
	}
}

// BenchmarkPlace measures the placement of one container on a node of 8 GPUs with 500 pods, for
// which the NRI handler waits. BenchmarkPlace also measures the worst case, a pod without room.
func BenchmarkPlace(b *testing.B) {
	cfg := config.Default()
	cfg.Node.SlotsPerGPU = 100
	l := New(gpus(80, 80, 80, 80, 80, 80, 80, 80), cfg)
	for i := range 500 {
		placeAll(l, pod(fmt.Sprint("pod", i), app("a", mem(1))))
	}
	b.Run("fits", func(b *testing.B) {
		p := pod("new", app("a", mem(1)))
		for b.Loop() {
			if _, err := l.Place(p, "a"); err != nil {
				b.Fatal(err)
			}
			l.Release(p.UID)
		}
	})
	for _, n := range []int{8, 16} {
		for name, p := range crowds(n) {
			b.Run(fmt.Sprintf("%d GPUs, %d %s", n, request.MostAsking, name), func(b *testing.B) {
				l := New(gpus(slices.Repeat([]uint64{80}, n)...), crowded())
				for b.Loop() {
					if _, err := l.Place(p, "c0"); err == nil {
						b.Fatal("placed")
					}
				}
			})
		}
	}
	b.Run("fits nowhere", func(b *testing.B) {
		var shares []request.Share
		for n := range 6 {
			shares = append(shares, mem(uint64(10+n)))
		}
		p := pod("new", app("a", shares...), app("b", mem(80)))
		for b.Loop() {
			if _, err := l.Place(p, "a"); err == nil {
				b.Fatal("placed")
			}
		}
	})
}

// TestLacksAgreesWithTheLedger checks that Lacks returns "" for a share and a GPU exactly if the
// ledger places a pod with only the share.
func TestLacksAgreesWithTheLedger(t *testing.T) {
	verdicts := map[bool]int{}
	for seed := range runs {
		w := newWorld(seed)
		cfg := w.config()
		if w.IntN(3) == 0 {
			cfg.Sharing.Method, cfg.Sharing.MPS.ClientsPerGPU = config.ShareByMPS, 1+w.IntN(3)
		}
		l := New(w.gpus(), cfg)
		for i := range w.IntN(6) {
			p := w.pod(fmt.Sprint("pod-", i))
			for _, c := range p.Containers {
				_, _ = l.Place(p, c.Name)
			}
		}
		share := w.share()
		share.SplitPPM = 0
		for _, room := range l.Free() {
			lacks := room.Lacks(share, 1)
			here := share
			if here.GPUs = []string{room.UUID}; len(share.GPUs) > 0 && !slices.Contains(share.GPUs, room.UUID) {
				here.GPUs = []string{"none"}
			}
			one := pod("one")
			one.Containers = []request.Container{{Name: "c", Kind: request.App, Shares: []request.Share{here}}}
			fits := l.Fits(one)
			if fits != (lacks == "") {
				t.Errorf("seed %d: %+v on %+v fits: %t, and lacks %q", seed, share, room, fits, lacks)
			}
			verdicts[fits]++
		}
	}
	if verdicts[true] < 100 || verdicts[false] < 100 {
		t.Errorf("too few verdicts of a kind: %v", verdicts)
	}
}

func TestLacksNamesWhatIsMissing(t *testing.T) {
	room := Room{UUID: "a", Healthy: true, MemoryBytes: 16 * gib, FreeMemoryBytes: 4 * gib, FreeComputePPM: 300_000, FreeSlots: 1}
	for _, tt := range []struct {
		name   string
		change func(*Room)
		share  request.Share
		want   string
	}{
		{"room", nil, request.Share{Memory: request.Memory{Bytes: 4 * gib}, ComputePPM: 300_000, Slots: 1}, ""},
		{"memory", nil, request.Share{Memory: request.Memory{Bytes: 6 * gib}}, "4096 of 6144 MiB are free"},
		{"memory in percent", nil, request.Share{Memory: request.Memory{PPM: 500_000}}, "4096 of 8192 MiB are free"},
		{"all", nil, request.Share{Memory: request.Memory{Bytes: 6 * gib}, ComputePPM: 500_000, Slots: 2},
			"4096 of 6144 MiB are free, 30 of 50 % of the time are free, 1 of 2 slots are free"},
		{"health", func(r *Room) { r.Healthy = false }, request.Share{}, "it is unhealthy"},
		{"its name", nil, request.Share{GPUs: []string{"b"}}, "the pod does not accept it"},
		{"company", func(r *Room) { r.Exclusive = true }, request.Share{}, "a container holds the whole GPU"},
		{"solitude", func(r *Room) { r.Holders = 1 }, request.Share{Exclusive: true}, "it is in use, and the container requests it exclusively"},
		{"clients", func(r *Room) { r.MPS = true }, request.Share{}, "MPS serves no further container"},
		{"common memory", func(r *Room) { r.Common, r.FreeMemoryBytes = true, 0 }, request.Share{Memory: request.Memory{Common: true}}, ""},
	} {
		r := room
		if tt.change != nil {
			tt.change(&r)
		}
		if got := r.Lacks(tt.share, 1); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	room.UUID = "MIG-a"
	for gpus, want := range map[int]string{1: "", 2: "a container with several GPUs gets no MIG device"} {
		if got := room.Lacks(request.Share{}, gpus); got != want {
			t.Errorf("%d GPUs on a MIG device: %q", gpus, got)
		}
	}
}

// TestFitsWithoutIsFitsAfterRelease compares FitsWithout with Fits of a ledger that has released
// the other pods.
func TestFitsWithoutIsFitsAfterRelease(t *testing.T) {
	verdicts := map[bool]int{}
	for seed := range runs {
		w := newWorld(seed)
		l := New(w.gpus(), w.config())
		var held []string
		for i := range 1 + w.IntN(8) {
			p := w.pod(fmt.Sprint("pod-", i))
			for _, c := range p.Containers {
				_, _ = l.Place(p, c.Name)
			}
			held = append(held, p.UID)
		}
		w.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		without := held[:w.IntN(len(held)+1)]
		one := w.pod("one")
		before := fmt.Sprint(l.Allocations())
		got := l.FitsWithout(one, without...)
		if after := fmt.Sprint(l.Allocations()); after != before {
			t.Fatalf("seed %d: the allocations have changed from %s to %s", seed, before, after)
		}
		for _, uid := range without {
			l.Release(uid)
		}
		if want := l.Fits(one); got != want {
			t.Errorf("seed %d: without %v it fits: %t, and after their release: %t", seed, without, got, want)
		}
		verdicts[got]++
	}
	if verdicts[true] < 30 || verdicts[false] < 30 {
		t.Errorf("too few verdicts of a kind: %v", verdicts)
	}
}
