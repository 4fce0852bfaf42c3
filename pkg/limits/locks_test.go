// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

const maxSlots = 1024

// open opens the page as another process would, until the test ends.
func (p usagePage) open() *os.File {
	p.t.Helper()
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { f.Close() })
	return f
}

// lock sets or queries a lock of an open page.
func (p usagePage) lock(f *os.File, command int, kind int16, start, length int64) unix.Flock_t {
	p.t.Helper()
	lock := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: start, Len: length}
	if err := unix.FcntlFlock(f.Fd(), command, &lock); err != nil && !errors.Is(err, unix.EAGAIN) {
		p.t.Fatal(err)
	}
	return lock
}

// TestHeldSlotsAgreesWithAQuestionPerSlot checks that queries of ranges find the same slots as one
// query for each slot.
func TestHeldSlotsAgreesWithAQuestionPerSlot(t *testing.T) {
	const slots = 64
	end := int64(slotsOffset + slots*slotSize)
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		p := newUsagePage(t, device(gpuA, 1<<30, 1))
		for range random.IntN(12) {
			owner := p.open()
			for range random.IntN(6) {
				kind := []int16{unix.F_WRLCK, unix.F_WRLCK, unix.F_RDLCK}[random.IntN(3)]
				// Locks may also lie before the slots, cover several, or extend to the
				// end of the file.
				p.lock(owner, unix.F_OFD_SETLK, kind, random.Int64N(end), random.Int64N(3*slotSize))
			}
		}
		reader := p.open()
		got, err := limits.HeldSlots(reader, slots)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]bool, slots)
		for i := range want {
			answer := p.lock(reader, unix.F_OFD_GETLK, unix.F_RDLCK, slotsOffset+int64(i)*slotSize, slotSize)
			want[i] = answer.Type != unix.F_UNLCK
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: got %v, want %v", seed, got, want)
		}
	}
}

// crowd sets many locks after the slots, which the kernel walks for each query, and locks
// evenly spaced slots.
func (p usagePage) crowd(slots int64) *os.File {
	p.t.Helper()
	const locks = 10_000
	p.put(highWaterOffset, []byte{maxSlots & 0xff, maxSlots >> 8})
	tenant := p.open()
	for i := range int64(locks) {
		p.lock(tenant, unix.F_OFD_SETLK, unix.F_WRLCK, slotsOffset+maxSlots*slotSize+2*i, 1)
	}
	for i := range slots {
		p.hold(i * (maxSlots / slots))
	}
	return tenant
}

// timeRead returns the processor time of a read. ErrBusy is not a failure of the test.
func (p usagePage) timeRead() (time.Duration, error) {
	p.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := limits.ThreadTime()
	_, err := limits.ReadUsage(p.path)
	if err != nil && !errors.Is(err, limits.ErrBusy) {
		p.t.Fatal(err)
	}
	return limits.ThreadTime() - begin, err
}

// TestLocksDoNotSlowReaders checks that a read ends within twice the budget, however many locks a
// tenant has set.
func TestLocksDoNotSlowReaders(t *testing.T) {
	for _, slots := range []int64{0, 16, maxSlots} {
		var took time.Duration
		for range 3 { // a busy machine may delay a reader
			p := newUsagePage(t, device(gpuA, 1<<30, 1))
			p.crowd(slots)
			if took, _ = p.timeRead(); took < 2*limits.LockBudget {
				break
			}
		}
		if took > 2*limits.LockBudget {
			t.Errorf("with %d slots a read took %v", slots, took)
		}
	}
}

// TestABusyPageIsLeftAlone checks that ReadUsage does not read a page for a while if its locks took
// too long, and then reads the page again.
func TestABusyPageIsLeftAlone(t *testing.T) {
	p := newUsagePage(t, device(gpuA, 1<<30, 1))
	tenant := p.crowd(maxSlots)
	if _, err := p.timeRead(); err == nil {
		t.Fatal("the page was read, though its locks take more than the budget")
	}
	if err := tenant.Close(); err != nil { // Close releases the tenant's locks
		t.Fatal(err)
	}
	if _, err := p.timeRead(); err == nil {
		t.Error("the page was not left alone")
	}
	eventually.Succeeds(t, 20*time.Second, "the page is read again", func(context.Context) error {
		_, err := p.timeRead()
		return err
	})
}

// TestABusyProcessorMakesNoPageBusy checks that a reader's wait for a processor does not count as
// cost of its page.
func TestABusyProcessorMakesNoPageBusy(t *testing.T) {
	p := newUsagePage(t, device(gpuA, 1<<30, 1))
	p.put(highWaterOffset, []byte{64, 0})
	for i := range int64(64) {
		p.hold(i)
	}
	burn(t, firstCPU(t))
	reader, waited := p.open(), make(chan time.Duration)
	go func() {
		defer close(waited)
		lockToCPU(t, firstCPU(t), unix.SCHED_IDLE)
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
			begin := time.Now()
			if _, err := limits.HeldSlots(reader, 64); err != nil {
				t.Error(err)
				return
			}
			if took := time.Since(begin); took > 2*limits.LockBudget {
				waited <- took
				return
			}
		}
	}()
	if _, ok := <-waited; !ok && !t.Failed() {
		t.Error("no reader had to wait for a processor in 30 s")
	}
}

// burn occupies a processor until the test ends.
func burn(t *testing.T, cpu int) {
	t.Helper()
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		lockToCPU(t, cpu, unix.SCHED_NORMAL)
		for !stop.Load() {
		}
	}()
	t.Cleanup(func() {
		stop.Store(true)
		<-done
	})
}

// firstCPU returns the first processor that the test may run on.
func firstCPU(t *testing.T) int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := 0; ; cpu++ {
		if set.IsSet(cpu) {
			return cpu
		}
	}
}

// lockToCPU locks the goroutine to a new thread, which runs on one processor under a
// scheduling policy and ends with the goroutine.
func lockToCPU(t *testing.T, cpu int, policy uint32) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Error(err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy}, 0); err != nil {
		t.Error(err)
	}
}

// TestABusyPageOfThePastDelaysNoOther checks that ReadUsage reads a new page at once. An earlier,
// busy page on an unmounted file system had the same device and inode numbers.
func TestABusyPageOfThePastDelaysNoOther(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	stat := func(p usagePage) (s unix.Stat_t) {
		t.Helper()
		if err := unix.Stat(p.path, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	mounted := func() (p usagePage, unmount func()) {
		t.Helper()
		dir := t.TempDir()
		if err := unix.Mount("page", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1)}); err != nil {
			t.Fatal(err)
		}
		return usagePage{t, filepath.Join(dir, limits.UsageFile)}, func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 100 { // another mount may take the numbers
		busy, unmount := mounted()
		before := stat(busy)
		tenants := []*os.File{busy.crowd(0), busy.open()}
		for i := range int64(maxSlots) {
			busy.lock(tenants[1], unix.F_OFD_SETLK, unix.F_WRLCK, slotsOffset+i*slotSize, 1)
		}
		if _, err := busy.timeRead(); err == nil {
			t.Fatal("the page was read, though its locks take more than the budget")
		}
		for _, tenant := range tenants {
			tenant.Close()
		}
		unmount()
		next, unmount := mounted()
		after := stat(next)
		_, err := next.timeRead()
		unmount()
		if before.Dev == after.Dev && before.Ino == after.Ino {
			if err != nil {
				t.Errorf("the next container's page: %v", err)
			}
			return
		}
	}
	t.Error("no file system got the numbers of another")
}

// TestAFullPageIsRead checks that the budget is enough for a page with the largest number of
// processes.
func TestAFullPageIsRead(t *testing.T) {
	p := newUsagePage(t, device(gpuA, 1<<30, 1))
	p.put(highWaterOffset, []byte{maxSlots & 0xff, maxSlots >> 8})
	for i := range int64(maxSlots) {
		p.hold(i)
	}
	var err error
	for range 5 { // a busy machine may delay a reader
		var held []bool
		begin := time.Now()
		if held, err = limits.HeldSlots(p.open(), maxSlots); err == nil {
			t.Logf("took %v", time.Since(begin))
			if slices.Contains(held, false) {
				t.Fatalf("held are %v", held)
			}
			return
		}
	}
	t.Error(err)
}

// TestLeasesDoNotHoldReadersUp checks that a lease delays no reader. An open of a file with a lease
// can wait 45 s for the end of the lease. A tenant that runs as root may take a lease on its pages.
func TestLeasesDoNotHoldReadersUp(t *testing.T) {
	usage := func(dir string) string { return filepath.Join(dir, limits.UsageFile) }
	page := func(dir string) string { return filepath.Join(dir, limits.LimitsFile) }
	tests := map[string]struct {
		path func(dir string) string
		call func(dir string) error
	}{
		"read the usage":          {usage, func(dir string) error { _, err := limits.ReadUsage(usage(dir)); return err }},
		"cut the usage":           {usage, func(dir string) error { _, err := limits.Cut(usage(dir)); return err }},
		"change the limits":       {page, func(dir string) error { return limits.Update(dir, nil) }},
		"read the limits":         {page, func(dir string) error { _, err := limits.Read(page(dir)); return err }},
		"read what is seen":       {page, func(dir string) error { _, err := limits.Observed(page(dir)); return err }},
		"record observations":     {page, func(dir string) error { return limits.Observe(dir, []uint64{1}) }},
		"lend time":               {page, func(dir string) error { _, err := limits.OpenLending(dir); return err }},
		"lend time, by its usage": {usage, func(dir string) error { _, err := limits.OpenLending(dir); return err }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1)}); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(usage(dir), limits.UsageBytes+1); err != nil { // Cut opens only a page that has grown
				t.Fatal(err)
			}
			tenant, err := os.Open(tt.path(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer tenant.Close()
			if _, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := tt.call(dir); !errors.Is(err, limits.ErrBusy) {
				t.Errorf("got %v after %v", err, time.Since(begin))
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("waited %v for the tenant", took)
			}
		})
	}
}

// TestATenantCannotRenewALeaseOnItsLimits checks that the agent can soon write to a limits page on which
// the tenant keeps taking leases. Without the agent's writes, a forged usage page hides memory.
func TestATenantCannotRenewALeaseOnItsLimits(t *testing.T) {
	dir := t.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1)}); err != nil {
		t.Fatal(err)
	}
	tenant, err := os.Open(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer tenant.Close()
	lease := func(kind int) error {
		_, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, kind)
		return err
	}
	if err := lease(unix.F_RDLCK); err != nil {
		t.Fatal(err)
	}
	observe := func() error { return limits.Observe(dir, []uint64{1 << 20}) }
	if err := observe(); !errors.Is(err, limits.ErrBusy) {
		t.Fatalf("beside a lease: %v", err)
	}
	// While an open waits, the kernel refuses another lease.
	eventually.Holds(t, 10*time.Second, "an open of the agent waits", func() bool { return errors.Is(lease(unix.F_RDLCK), unix.EAGAIN) })
	if err := lease(unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if err := lease(unix.F_RDLCK); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the tenant renewed its lease: %v", err)
	}
	eventually.Succeeds(t, 10*time.Second, "write the observed memory", func(context.Context) error { return observe() })
}
