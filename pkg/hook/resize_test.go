// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// size returns the shares of a container with a part of one GPU.
func size(memoryMiB uint64, percent uint32) []request.Share {
	return []request.Share{{Memory: request.Memory{Bytes: memoryMiB * mib}, ComputePPM: percent * 10_000, Slots: 1}}
}

// sizes are the sizes of a pod's main container in all places: memory in MiB and percent of the time.
// File is 0 if there is no file.
type sizes struct{ Ledger, File, Reserved, Page [2]uint64 }

func same(memoryMiB, percent uint64) [2]uint64 { return [2]uint64{memoryMiB, percent} }

func (n *node) containerDir(uid string) string {
	return filepath.Join(n.cfg.Paths.RunDir, "containers", uid, "main")
}

// inForce returns the sizes of a pod's main container in the ledger and on its page.
func (n *node) inForce(uid string) (ledger, page [2]uint64) {
	n.t.Helper()
	held, _ := n.ledger.Get(uid, "main")
	if devices, err := limits.Read(filepath.Join(n.containerDir(uid), limits.LimitsFile)); err == nil {
		page = same(devices[0].MemoryBytes/mib, uint64(devices[0].ComputePPM)/10_000)
	}
	return sizeOf(held), page
}

func sizeOf(a placement.Allocation) [2]uint64 {
	if len(a.Devices) == 0 {
		return [2]uint64{}
	}
	return same(a.Devices[0].MemoryBytes/mib, uint64(a.Devices[0].ComputePPM)/10_000)
}

// sizes reads the sizes of a pod's main container, and puts invalid files aside.
func (n *node) sizes(uid string) (s sizes) {
	n.t.Helper()
	s.Ledger, s.Page = n.inForce(uid)
	own, _ := n.hook.opts.Store.Assignment(uid, "main")
	s.File = sizeOf(own)
	all, _ := n.hook.opts.Store.Load()
	for _, a := range all {
		if a.PodUID == uid && a.Container == "main" {
			s.Reserved = sizeOf(a)
		}
	}
	return s
}

// wantSizes compares the sizes of pod "u".
func (n *node) wantSizes(want sizes) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.sizes("u")); diff != "" {
		n.t.Errorf("the sizes of pod u differ (-want +got):\n%s", diff)
	}
}

// wantPlaced checks the sizes at the placement of a pod's main container.
func (n *node) wantPlaced(uid string, want [2]uint64) {
	n.t.Helper()
	held, _ := n.ledger.Get(uid, "main")
	if got := sizeOf(placement.Allocation{Devices: held.Placed}); got != want {
		n.t.Errorf("the container was placed with %v, want %v", got, want)
	}
}

func everywhere(memoryMiB, percent uint64) sizes {
	s := same(memoryMiB, percent)
	return sizes{s, s, s, s}
}

func TestResizeOfARunningContainer(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=4096", "second=1024")
	n.pod("v", "main=8192")
	mustCreate(t, n, "u")
	mustCreate(t, n, "v")
	n.wantSizes(sizes{Ledger: same(4096, 0), File: same(4096, 0), Reserved: same(4096, 0), Page: same(4096, 100)})
	for _, want := range [][2]uint64{{7168, 50}, {7168, 50}, {1, 1}, {2048, 80}, {4096, 50}} {
		if err := n.hook.Resize("u", "main", size(want[0], uint32(want[1]))); err != nil {
			t.Fatal(err)
		}
		n.wantSizes(everywhere(want[0], want[1]))
	}
	// The runtime knows only the first sizes. A new instance of the container gets the last sizes.
	n.restartHook()
	n.wantSizes(everywhere(4096, 50))
	n.exit("u")
	mustCreate(t, n, "u")
	n.wantSizes(everywhere(4096, 50))
	n.wantPlaced("u", same(4096, 0))
	if second, _ := n.ledger.Get("u", "second"); second.Devices[0].MemoryBytes != 1024*mib || second.Resized {
		t.Errorf("the other container holds %+v", second)
	}
}

func TestResizeBeforeTheContainerIsCreated(t *testing.T) {
	n := newNode(t)
	n.pod("v", "main=1024") // the container of another pod runs
	mustCreate(t, n, "v")
	pod := n.pod("u", "main=4096")
	if err := n.hook.Reserve(pod); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(2048, 0)); err != nil {
		t.Fatal(err)
	}
	n.restartHook()
	n.wantSizes(sizes{Ledger: same(2048, 0), Reserved: same(2048, 0)})
	mustCreate(t, n, "u")
	n.wantSizes(sizes{Ledger: same(2048, 0), File: same(2048, 0), Reserved: same(2048, 0), Page: same(2048, 100)})
}

// TestResizeOfAWholeGPUBeforeTheContainerIsCreated checks that a container with a reserved whole GPU can
// shrink before its creation, and then has limits.
func TestResizeOfAWholeGPUBeforeTheContainerIsCreated(t *testing.T) {
	n := newNode(t)
	if err := n.hook.Reserve(n.pod("u", "main=16384")); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(2048, 0)); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, n, "u")
	n.wantSizes(sizes{Ledger: same(2048, 0), File: same(2048, 0), Reserved: same(2048, 0), Page: same(2048, 100)})
}

func TestResizeWithoutRoom(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=4096")
	n.pod("v", "main=8192")
	mustCreate(t, n, "u")
	mustCreate(t, n, "v")
	var none *placement.NoRoomError
	// The memory shrinks and the time grows: neither changes.
	if err := n.hook.Resize("v", "main", size(8192, 60)); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]request.Share{size(8193, 0), size(2048, 41)} {
		if err := n.hook.Resize("u", "main", want); !errors.As(err, &none) {
			t.Errorf("got %v", err)
		}
		n.wantSizes(sizes{Ledger: same(4096, 0), File: same(4096, 0), Reserved: same(4096, 0), Page: same(4096, 100)})
	}
}

func TestResizeBelowTheUse(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	use := func(bytes uint64) {
		t.Helper()
		if err := limits.Observe(n.containerDir("u"), []uint64{bytes}); err != nil {
			t.Fatal(err)
		}
	}
	use(2048*mib + 1)
	before := generation(t, n)
	var inUse *placement.InUseError
	err := n.hook.Resize("u", "main", size(2048, 50))
	if !errors.As(err, &inUse) || !strings.Contains(err.Error(), "uses 2049 MiB of GPU "+gpuA+", and its new limit is 2048 MiB") {
		t.Errorf("got %v", err)
	}
	n.wantSizes(sizes{Ledger: same(4096, 0), File: same(4096, 0), Reserved: same(4096, 0), Page: same(4096, 100)})
	if after := generation(t, n); after != before {
		t.Error("the running program saw the lower limit for a while")
	}
	use(5000 * mib)                                                    // the driver may count more than the limit
	if err := n.hook.Resize("u", "main", size(4096, 50)); err != nil { // a limit on time alone
		t.Error(err)
	}
	use(2048 * mib)
	if err := n.hook.Resize("u", "main", size(2048, 50)); err != nil {
		t.Error(err)
	}
	n.wantSizes(everywhere(2048, 50))
	// A container whose use cannot be read may use any amount.
	if err := os.Truncate(filepath.Join(n.containerDir("u"), limits.UsageFile), 1); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(1024, 50)); err == nil {
		t.Error("shrunk without knowing the use")
	}
	n.wantSizes(everywhere(2048, 50))
	n.exit("u") // no process is left
	if err := n.hook.Resize("u", "main", size(1024, 50)); err != nil {
		t.Error(err)
	}
}

func TestResizeOfContainersWithoutLimits(t *testing.T) {
	n := newNode(t)
	n.pod("whole", "main=16384")
	n.pod("none", "main")
	mustCreate(t, n, "whole")
	for _, uid := range []string{"whole", "none", "unknown"} {
		if err := n.hook.Resize(uid, "main", size(1024, 0)); !errors.As(err, new(*placement.InfeasibleError)) {
			t.Errorf("%s: got %v", uid, err)
		}
	}
	n.run("u", "main=4096")
	if err := os.Remove(filepath.Join(n.containerDir("u"), limits.LimitsFile)); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(1024, 0)); err == nil || errors.As(err, new(*placement.InfeasibleError)) || !strings.Contains(err.Error(), "limits page") {
		t.Errorf("without its page: got %v", err)
	}
}

func TestResizeBeforeSynchronization(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	n.hook.synchronized = false
	if err := n.hook.Resize("u", "main", size(1024, 0)); !errors.Is(err, placement.ErrNotReady) {
		t.Errorf("got %v", err)
	}
}

// TestResizeThatCannotBePersisted checks that neither ledger nor page change if the container's files
// cannot be written.
func TestResizeThatCannotBePersisted(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	if err := n.hook.Resize("u", "main", size(4096, 50)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.containerDir("u"), "assignment.json")
	if err := os.Rename(file, file+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(file, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]request.Share{size(8192, 50), size(1024, 10), size(1024, 90), size(4096, 50)} {
		if err := n.hook.Resize("u", "main", want); err == nil {
			t.Error("resized without its file")
		}
		if ledger, page := n.inForce("u"); ledger != same(4096, 50) || page != same(4096, 50) {
			t.Errorf("after a failure: ledger %v, page %v", ledger, page)
		}
	}
	if err := errors.Join(os.RemoveAll(file), os.Rename(file+".moved", file)); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(8192, 50)); err != nil {
		t.Error(err)
	}
	n.wantSizes(everywhere(8192, 50))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(1024, 50)); err != nil {
		t.Error(err)
	}
	n.wantSizes(everywhere(1024, 50))
}

// TestResizeSurvivesKills checks that an agent that is killed at any point of a resize leaves no page
// above the ledger. The next agent writes the same sizes to all places, and can resize again.
func TestResizeSurvivesKills(t *testing.T) {
	for _, want := range [][2]uint64{{8192, 50}, {1024, 10}, {1024, 90}, {8192, 10}} {
		shares := size(want[0], uint32(want[1]))
		for killed := range 6 {
			n := newNode(t)
			n.pod("u", "main=4096", "second=1024")
			n.api.change(func() {
				n.api.pods["u"].Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-cores"] = resource.MustParse("30")
			})
			mustCreate(t, n, "u")
			n.hook.mu.Lock()
			before, _ := n.ledger.Get("u", "main")
			var after placement.Allocation
			for _, step := range []func() error{
				func() error { return n.hook.markResized(before) },
				func() error {
					var err error
					after, err = n.ledger.PlanResize("u", "main", shares)
					return errors.Join(err, n.hook.lower(before, after))
				},
				func() error { n.ledger.SetResized(after); return nil },
				func() error { return n.hook.persist(after) },
				func() error { return n.hook.updateLimits(after) },
			}[:killed] {
				if err := step(); err != nil {
					t.Fatal(err)
				}
				if s := n.sizes("u"); s.Page[0] > s.Ledger[0] || s.Page[1] > s.Ledger[1] || s.Page[0] > s.File[0] || s.Page[1] > s.File[1] {
					t.Errorf("to %v, step %d: the page exceeds the ledger or the file: %+v", want, killed, s)
				}
			}
			n.hook.mu.Unlock()
			n.restartHook()
			agreed := everywhere(4096, 30)
			if killed >= 4 {
				agreed = everywhere(want[0], want[1])
			}
			n.wantSizes(agreed)
			if err := n.hook.Resize("u", "main", shares); err != nil {
				t.Error(err)
			}
			n.wantSizes(everywhere(want[0], want[1]))
			n.wantPlaced("u", same(4096, 30))
		}
	}
}

// TestResizeAfterLostFiles loses or damages the files of a resized container. The test checks that the
// ledger counts the sizes on the page, which the processes obey.
func TestResizeAfterLostFiles(t *testing.T) {
	for name, lose := range map[string]func(file string) error{
		"lost": os.Remove, "damaged": func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
	} {
		for _, want := range [][2]uint64{{8192, 50}, {1024, 10}} {
			n := newNode(t)
			n.pod("u", "main=4096", "second=1024")
			mustCreate(t, n, "u")
			if err := n.hook.Resize("u", "main", size(want[0], uint32(want[1]))); err != nil {
				t.Fatal(err)
			}
			n.stopHook()
			reservation := filepath.Join(filepath.Dir(n.containerDir("u")), "assignments.json")
			if err := errors.Join(lose(filepath.Join(n.containerDir("u"), "assignment.json")), lose(reservation)); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second agent finds what the first has written
				n.startHook()
				s := n.sizes("u")
				if all := same(want[0], want[1]); s.Ledger != all || s.File != all || s.Page != all {
					t.Errorf("%s: sizes %+v, want %v", name, s, all)
				}
				n.wantPlaced("u", same(4096, 0))
				n.stopHook()
			}
			n.startHook()
		}
	}
}

// TestSizesOnThePageOfOthers checks that a container that was never resized keeps the allocation that
// the runtime reports. The allocations have no limit on time, all of the time, or a raised limit on
// memory.
func TestSizesOnThePageOfOthers(t *testing.T) {
	n := newNode(t)
	for _, d := range []placement.Device{
		{UUID: gpuA, MemoryBytes: 4 * mib},
		{UUID: gpuA, MemoryBytes: 4 * mib, ComputePPM: request.Whole},
		{UUID: gpuA, MemoryBytes: 4 * mib, LimitBytes: 8 * mib, ComputePPM: 300_000, MaximumPPM: 400_000},
	} {
		a := placement.Allocation{PodUID: "u", Container: "main", Kind: request.App, Devices: []placement.Device{d}}
		if err := n.hook.opts.Store.Save(a, testGPUs(), nil); err != nil {
			t.Fatal(err)
		}
		if got := n.hook.sizesOnPage(a); got.Resized || got.Devices[0] != d {
			t.Errorf("%+v becomes %+v", d, got)
		}
	}
}

// TestSizesOnThePage checks that the page shows a lost resize of memory or of time alone. A page of
// another GPU proves nothing.
func TestSizesOnThePage(t *testing.T) {
	n := newNode(t)
	d := placement.Device{UUID: gpuA, MemoryBytes: 4 * mib, ComputePPM: 300_000}
	memory, compute, other := d, d, d
	memory.MemoryBytes = 8 * mib
	compute.ComputePPM = 200_000
	other.UUID, other.MemoryBytes = gpuB, 8*mib
	for _, tt := range []struct {
		page    []placement.Device
		want    placement.Device
		resized bool
	}{
		{[]placement.Device{d}, d, false},
		{[]placement.Device{memory}, memory, true},
		{[]placement.Device{compute}, compute, true},
		{[]placement.Device{other}, d, false},
		{[]placement.Device{memory, other}, d, false},
	} {
		a := placement.Allocation{PodUID: "u", Container: "main", Kind: request.App, Devices: tt.page}
		if err := n.hook.opts.Store.Save(a, testGPUs(), nil); err != nil {
			t.Fatal(err)
		}
		a.Devices = []placement.Device{d}
		if got := n.hook.sizesOnPage(a); got.Resized != tt.resized || got.Devices[0] != tt.want {
			t.Errorf("with %+v on the page, the container has %+v", tt.page, got)
		}
	}
}

// TestResizeToTheSameSizes checks that a repeated resize completes the limits page, which an agent may
// not have written before it was killed.
func TestResizeToTheSameSizes(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	if err := n.hook.Resize("u", "main", size(8192, 50)); err != nil {
		t.Fatal(err)
	}
	if err := limits.Update(n.containerDir("u"), []limits.Device{{UUID: gpuA, MemoryBytes: 4096 * mib, ComputePPM: 500_000}}); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(8192, 50)); err != nil {
		t.Error(err)
	}
	n.wantSizes(everywhere(8192, 50))
}

// TestResizeThatIsCompletedLater checks that the agent writes the page of a resized container later if
// the page was held busy at the agent's start.
func TestResizeThatIsCompletedLater(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	if err := n.hook.Resize("u", "main", size(4096, 50)); err != nil {
		t.Fatal(err)
	}
	n.stopHook()
	page := filepath.Join(n.containerDir("u"), limits.LimitsFile)
	if err := limits.Update(filepath.Dir(page), []limits.Device{{UUID: gpuA, MemoryBytes: 1, ComputePPM: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(page, page+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(page, 0o700); err != nil {
		t.Fatal(err)
	}
	n.startHook()
	if err := errors.Join(os.Remove(page), os.Rename(page+".away", page)); err != nil {
		t.Fatal(err)
	}
	n.hook.Sweep()
	if _, now := n.inForce("u"); now != same(4096, 50) || len(n.hook.incomplete) != 0 {
		t.Errorf("the page has %v", now)
	}
}

// TestATenantsLockDelaysNobody checks that a lock on the limits page, which a container can read, does
// not delay a resize.
func TestATenantsLockDelaysNobody(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	page, err := os.Open(filepath.Join(n.containerDir("u"), limits.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := unix.Flock(int(page.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- n.hook.Resize("u", "main", size(2048, 50)) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the resize waits for the tenant's lock")
	}
	n.wantSizes(everywhere(2048, 50))
}

// TestResizeOnTwoGPUs checks that a container changes on all of its GPUs or on none.
func TestResizeOnTwoGPUs(t *testing.T) {
	n := newNode(t)
	pod := n.pod("u", "main=4096")
	n.api.change(func() { pod.Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-number"] = resource.MustParse("2") })
	mustCreate(t, n, "u")
	n.run("v", "main=8192")
	two := func(memoryMiB uint64) []request.Share { return append(size(memoryMiB, 0), size(memoryMiB, 0)...) }
	var none *placement.NoRoomError
	if err := n.hook.Resize("u", "main", two(9000)); !errors.As(err, &none) {
		t.Errorf("got %v", err)
	}
	n.wantSizes(sizes{Ledger: same(4096, 0), File: same(4096, 0), Reserved: same(4096, 0), Page: same(4096, 100)})
	if err := n.hook.Resize("u", "main", two(8192)); err != nil {
		t.Error(err)
	}
	held, _ := n.ledger.Get("u", "main")
	page, err := limits.Read(filepath.Join(n.containerDir("u"), limits.LimitsFile))
	for i := range 2 {
		if err != nil || held.Devices[i].MemoryBytes != 8192*mib || page[i].MemoryBytes != 8192*mib {
			t.Errorf("GPU %d: holds %+v, page %+v, %v", i, held.Devices[i], page, err)
		}
	}
}

func TestSmaller(t *testing.T) {
	d := func(memory, limit uint64, compute, maximum uint32) placement.Device {
		return placement.Device{UUID: gpuA, MemoryBytes: memory, LimitBytes: limit, ComputePPM: compute, MaximumPPM: maximum}
	}
	for _, tt := range []struct {
		name       string
		a, b, want placement.Device
	}{
		{"the same", d(4, 8, 10, 20), d(4, 8, 10, 20), d(4, 8, 10, 20)},
		{"more of everything", d(4, 8, 10, 20), d(5, 9, 11, 21), d(4, 8, 10, 20)},
		{"less memory", d(4, 0, 0, 0), d(3, 0, 0, 0), d(3, 0, 0, 0)},
		{"a lower limit on memory", d(4, 8, 10, 0), d(4, 6, 10, 0), d(6, 0, 10, 0)},
		{"a first limit on time", d(4, 0, 0, 0), d(4, 0, 10, 0), d(4, 0, 10, 0)},
		{"a first guarantee", d(4, 0, 0, 0), d(4, 0, 10, request.Whole), d(4, 0, 10, request.Whole)},
		{"a lower guarantee", d(4, 0, 20, 30), d(4, 0, 10, 30), d(4, 0, 10, 30)},
		{"a lower maximum", d(4, 0, 20, 30), d(4, 0, 20, 25), d(4, 0, 20, 25)},
		{"no maximum", d(4, 0, 20, 30), d(4, 0, 20, 0), d(4, 0, 20, 0)},
		{"a guarantee above the maximum", d(4, 0, 20, 30), d(4, 0, 40, 0), d(4, 0, 20, 30)},
	} {
		a, b := placement.Allocation{Devices: []placement.Device{tt.a}}, placement.Allocation{Devices: []placement.Device{tt.b}}
		if got := smaller(a, b).Devices; !slices.Equal(got, []placement.Device{tt.want}) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
		if a.Devices[0] != tt.a || b.Devices[0] != tt.b {
			t.Errorf("%s: an argument has changed", tt.name)
		}
	}
}

// TestResizeKeepsTheMaximum checks that a container keeps its maximum while its guarantee changes.
func TestResizeKeepsTheMaximum(t *testing.T) {
	n := newNode(t, func(n *node) { n.cfg.Compute.Policy = config.ComputeShare })
	n.run("u", "main=4096")
	shares := size(2048, 50)
	shares[0].MaximumPPM = request.Whole
	if err := n.hook.Resize("u", "main", shares); err != nil {
		t.Fatal(err)
	}
	page, err := limits.Read(filepath.Join(n.containerDir("u"), limits.LimitsFile))
	if err != nil || page[0].ComputePPM != 500_000 || page[0].MaximumPPM != request.Whole {
		t.Errorf("got %+v, %v", page, err)
	}
}
