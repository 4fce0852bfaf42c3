// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

// generation returns the number of changes of the limits page of the pod u.
func generation(t *testing.T, n *node) uint64 {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.containerDir("u"), limits.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(raw[16:])
}

// TestDeferredSizesDisturbNothing checks that a size without room does not lower the limits of
// running programs, however often the agent tries.
func TestDeferredSizesDisturbNothing(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=4096")
	n.pod("v", "main=8192")
	mustCreate(t, n, "u")
	mustCreate(t, n, "v")
	if err := n.hook.Resize("v", "main", size(8192, 60)); err != nil {
		t.Fatal(err)
	}
	least := uint64(4096)
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if devices, err := limits.Read(filepath.Join(n.containerDir("u"), limits.LimitsFile)); err == nil {
				least = min(least, devices[0].MemoryBytes/mib)
			}
		}
	}()
	before := generation(t, n)
	for range 50 {
		var none *placement.NoRoomError
		if err := n.hook.Resize("u", "main", size(1024, 41)); !errors.As(err, &none) {
			t.Fatalf("got %v", err)
		}
	}
	close(stop)
	<-done
	if after := generation(t, n); after != before || least < 4096 {
		t.Errorf("50 deferred tries changed the limits page %d times; a program saw a limit of %d MiB, and the container has 4096 MiB", after-before, least)
	}
}

// TestResizeThatIsPartlyPersisted checks that a GPU is not allocated twice after a restart if only
// one of the two files could be written.
func TestResizeThatIsPartlyPersisted(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=4096", "second=1024")
	mustCreate(t, n, "u")
	if err := n.hook.Resize("u", "main", size(4096, 50)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(n.containerDir("u")), "assignments.json")
	if err := errors.Join(os.Rename(file, file+".moved"), os.MkdirAll(filepath.Join(file, "full"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(15000, 50)); err == nil {
		t.Error("resized without the file of its pod")
	}
	ledger, page := n.inForce("u")
	own, _ := n.hook.opts.Store.Assignment("u", "main")
	if before := same(4096, 50); ledger != before || page != before || sizeOf(own) != before {
		t.Errorf("ledger %v, page %v, own file %v, want %v", ledger, page, sizeOf(own), before)
	}
	if err := errors.Join(os.RemoveAll(file), os.Rename(file+".moved", file)); err != nil {
		t.Fatal(err)
	}
	n.run("v", "main=11000")
	held, _ := n.ledger.Get("v", "main")
	if held.Devices[0].UUID != gpuA {
		t.Fatalf("the other pod is on %s, and its room is not that of the first", held.Devices[0].UUID)
	}
	n.restartHook()
	var sum uint64
	for _, a := range n.ledger.Allocations() {
		for _, d := range a.Devices {
			if d.UUID == gpuA {
				sum += d.MemoryBytes / mib
			}
		}
	}
	_, page = n.inForce("u")
	if sum > 16384 {
		t.Errorf("after the restart %d MiB of the GPU's 16384 MiB are allocated, and the page of the container that did not grow allows %d MiB", sum, page[0])
	}
}

// TestResizeOnAnUnhealthyGPUGoesBack checks that a shrink which cannot be persisted leaves the page
// within the ledger.
func TestResizeOnAnUnhealthyGPUGoesBack(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	if err := n.hook.Resize("u", "main", size(4096, 50)); err != nil {
		t.Fatal(err)
	}
	sick := testGPUs()
	sick[0].Healthy = false
	n.ledger.SetGPUs(sick)
	file := filepath.Join(n.containerDir("u"), "assignment.json")
	if err := errors.Join(os.Rename(file, file+".moved"), os.MkdirAll(filepath.Join(file, "full"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := n.hook.Resize("u", "main", size(1024, 50)); err == nil {
			t.Error("resized without its file")
		}
		if ledger, page := n.inForce("u"); page[0] > ledger[0] {
			t.Errorf("the page allows %d MiB, and the ledger holds %d MiB", page[0], ledger[0])
		}
	}
	n.ledger.SetGPUs(testGPUs()) // the GPU recovers
	if free := n.ledger.Free()[0].FreeMemoryBytes; free != (16384-4096)*mib {
		t.Errorf("after the recovery %d MiB are free", free/mib)
	}
}

// TestShrinkOfMoreThanTheGPUHas checks that a container shrinks after the node has reserved memory
// that the container holds.
func TestShrinkOfMoreThanTheGPUHas(t *testing.T) {
	n := newNode(t)
	n.cfg.Injection.InterposeWholeGPUs = true
	n.restartHook()
	n.run("u", "main=16384")
	n.stopHook()
	n.cfg.Node.ReservedMemoryMiB = 512
	n.startHook()
	if err := n.hook.Resize("u", "main", size(8192, 0)); err != nil {
		t.Errorf("a shrink to half of the GPU: %v", err)
	}
}

// TestMarkThatWasNotPersisted checks that the agent persists the mark of a resized container before
// a size changes, also after a failed try.
func TestMarkThatWasNotPersisted(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	file := filepath.Join(n.containerDir("u"), "assignment.json")
	if err := errors.Join(os.Rename(file, file+".moved"), os.MkdirAll(filepath.Join(file, "full"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(1024, 0)); err == nil {
		t.Fatal("resized")
	}
	if err := errors.Join(os.RemoveAll(file), os.Rename(file+".moved", file)); err != nil {
		t.Fatal(err)
	}
	// The next attempt lowers the page, and the agent dies before the end of the attempt.
	n.hook.mu.Lock()
	before, _ := n.ledger.Get("u", "main")
	after, _ := n.ledger.PlanResize("u", "main", size(1024, 0))
	if err := errors.Join(n.hook.markResized(before), n.hook.lower(before, after)); err != nil {
		t.Fatal(err)
	}
	n.hook.mu.Unlock()
	n.restartHook()
	if ledger, page := n.inForce("u"); ledger[0] != page[0] {
		t.Errorf("after the restart the ledger holds %d MiB, and the page allows %d MiB", ledger[0], page[0])
	}
}

// TestResizeAfterADamagedFile damages the container's own file, but not the file of its pod. The
// test checks that page and ledger agree, even after a second restart.
func TestResizeAfterADamagedFile(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=4096", "second=1024")
	mustCreate(t, n, "u")
	if err := n.hook.Resize("u", "main", size(15000, 50)); err != nil {
		t.Fatal(err)
	}
	n.stopHook()
	if err := os.WriteFile(filepath.Join(n.containerDir("u"), "assignment.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.startHook()
	for _, restart := range []string{"first", "second"} {
		if ledger, page := n.inForce("u"); ledger != same(15000, 50) || page != ledger {
			t.Errorf("after the %s restart: ledger %v, page %v", restart, ledger, page)
		}
		n.restartHook()
	}
}

// TestLostFileOfAShrunkContainer checks that the agent does not raise the limit of a container
// whose file is lost to the size at its creation.
func TestLostFileOfAShrunkContainer(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	if err := n.hook.Resize("u", "main", size(15000, 50)); err != nil {
		t.Fatal(err)
	}
	n.exit("u")
	mustCreate(t, n, "u") // the runtime now knows 15000 MiB
	if err := n.hook.Resize("u", "main", size(1024, 50)); err != nil {
		t.Fatal(err)
	}
	n.run("v", "main=14000")
	if held, _ := n.ledger.Get("v", "main"); held.Devices[0].UUID != gpuA {
		t.Fatalf("the other pod is on %s, and its room is not that of the first", held.Devices[0].UUID)
	}
	n.stopHook()
	if err := os.Remove(filepath.Join(n.containerDir("u"), "assignment.json")); err != nil {
		t.Fatal(err)
	}
	n.startHook()
	_, u := n.inForce("u")
	_, v := n.inForce("v")
	if u[0]+v[0] > 16384 {
		t.Errorf("the limits pages allow %d and %d MiB of a GPU with 16384 MiB", u[0], v[0])
	}
}

// TestContainerThatGrewToAWholeGPU checks that a container which grew to a whole GPU and was
// restarted returns to its request.
func TestContainerThatGrewToAWholeGPU(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	if err := n.hook.Resize("u", "main", size(16384, 0)); err != nil {
		t.Fatal(err)
	}
	n.exit("u")
	mustCreate(t, n, "u")
	if err := n.hook.Resize("u", "main", size(4096, 0)); err != nil {
		t.Errorf("back to the request: %v", err)
	}
}

// TestResizeOfACreatedContainerWithoutInterposer checks that a container without the interposer
// does not shrink. The agent restarts after the creation of the container, and before its start.
func TestResizeOfACreatedContainerWithoutInterposer(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=16384")
	n.stopHook()
	n.mu.Lock()
	for _, c := range n.containers {
		c.State = api.ContainerState_CONTAINER_CREATED
	}
	n.mu.Unlock()
	n.startHook()
	err := n.hook.Resize("u", "main", size(1024, 10))
	held, _ := n.ledger.Get("u", "main")
	if !errors.As(err, new(*placement.InfeasibleError)) || sizeOf(held) != same(16384, 0) {
		t.Errorf("the ledger holds %v for a container that was created with a whole GPU and without the interposer: %v", sizeOf(held), err)
	}
}

// TestResizeOfARaisedLimit checks that a container whose limit exceeds its request keeps its
// memory.
func TestResizeOfARaisedLimit(t *testing.T) {
	n := newNode(t, func(n *node) { n.cfg.Memory.OvercommitPercent = 100 })
	pod := n.pod("u", "main=8192")
	pod.Annotations = map[string]string{"gpu-mem-limit.nri-vgpu.io/vgpu-memory": "16384"}
	mustCreate(t, n, "u")
	if err := limits.Observe(n.containerDir("u"), []uint64{16000 * mib}); err != nil {
		t.Fatal(err)
	}
	asked, err := request.Read(pod, n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	shares := slices.Clone(asked.Containers[0].Shares) // as resize.Size{MemoryMiB: 1}.Apply
	shares[0].Memory = request.Memory{Bytes: mib}
	err = n.hook.Resize("u", "main", shares)
	held, _ := n.ledger.Get("u", "main")
	_, page := n.inForce("u")
	if !errors.As(err, new(*placement.InfeasibleError)) || held.Devices[0].MemoryBytes != 8192*mib || page[0] != 16384 {
		t.Errorf("the container uses 16000 MiB; the ledger now reserves %d MiB, and the page allows %d MiB; free: %v: %v",
			held.Devices[0].MemoryBytes/mib, page[0], n.ledger.Free()[0], err)
	}
}

// TestResizeAfterAReleaseWithoutTheFeature checks that page and ledger agree after an upgrade from
// a release that counts a grown container by its spec.
func TestResizeAfterAReleaseWithoutTheFeature(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=4096")
	old, _ := n.ledger.Get("u", "main")
	if err := n.hook.Resize("u", "main", size(15000, 0)); err != nil {
		t.Fatal(err)
	}
	n.stopHook()
	if err := n.hook.opts.Store.Rewrite(old); err != nil { // as its adopt did
		t.Fatal(err)
	}
	n.startHook()
	if ledger, page := n.inForce("u"); page[0] > ledger[0] {
		t.Errorf("the ledger holds %d MiB, and the page allows %d MiB", ledger[0], page[0])
	}
}

// TestResizeOnAFullDisk is TestResizeThatIsPartlyPersisted on a full file system. The file of a pod
// with many containers needs more pages than the file of a container.
func TestResizeOnAFullDisk(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	run := ownmounts.Small(t)
	n := newNode(t, func(n *node) {
		n.cfg.Paths.RunDir = filepath.Join(run, "nri-vgpu")
		n.cfg.Node.SlotsPerGPU = 100
	})
	containers := []string{"main=4096"}
	for i := range 20 {
		containers = append(containers, fmt.Sprintf("c%d=16", i))
	}
	n.pod("u", containers...)
	mustCreate(t, n, "u")
	if err := n.hook.Resize("u", "main", size(4096, 50)); err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(filepath.Join(run, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	page := make([]byte, os.Getpagesize())
	for err == nil {
		_, err = filler.Write(page)
	}
	filler.Close()
	info, _ := os.Stat(filler.Name())
	if err := os.Truncate(filler.Name(), info.Size()-int64(os.Getpagesize())); err != nil { // one page is free
		t.Fatal(err)
	}
	if err := n.hook.Resize("u", "main", size(15000, 50)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full file system: %v", err)
	}
	own, _ := n.hook.opts.Store.Assignment("u", "main")
	if ledger, limit := n.inForce("u"); sizeOf(own) != same(4096, 50) || ledger != sizeOf(own) || limit != ledger {
		t.Errorf("ledger %v, page %v, own file %v", ledger, limit, sizeOf(own))
	}
}
