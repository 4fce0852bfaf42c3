// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// These constants are the offsets of the fields that lending reads and writes, as declared in
// internal/layout.
const (
	leasesOffset = 2288
	othersOffset = 2416
	looksOffset  = 2544

	deviceBytes   = 128
	balanceOffset = 40
	filledOffset  = 48
	spentOffset   = 56
)

// lending opens the pages of a new container with two GPUs, until the test ends.
func lending(t *testing.T) (*limits.Lending, usagePage) {
	t.Helper()
	l, page := openLending(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, page
}

// openLending opens the pages for a test that closes them itself.
func openLending(t *testing.T) (*limits.Lending, usagePage) {
	t.Helper()
	page := newUsagePage(t, device(gpuA, 1<<30, 300_000), device(gpuB, 1<<30, 300_000))
	l, err := limits.OpenLending(filepath.Dir(page.path))
	if err != nil {
		t.Fatal(err)
	}
	return l, page
}

// word returns a word of the limits page beside a usage page.
func (p usagePage) word(offset int64) uint64 {
	p.t.Helper()
	page, err := os.ReadFile(filepath.Join(filepath.Dir(p.path), limits.LimitsFile))
	if err != nil {
		p.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(page[offset:])
}

func TestAllowances(t *testing.T) {
	l, page := lending(t)
	page.putWords(device0+balanceOffset, 0xffff_ffff_ffff_fff0, uint64(3*time.Second), 77)
	page.putWords(device0+deviceBytes+balanceOffset, 5, 0xffff_ffff_ffff_ffff, 6)

	want := []limits.Allowance{
		{Spent: 77, Balance: -16, Filled: 3 * time.Second},
		{Spent: 6, Balance: 5, Filled: 1<<63 - 1}, // forged
	}
	for _, count := range []int{1, 2} {
		got := make([]limits.Allowance, count)
		if err := l.Allowances(got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[:count], got); diff != "" {
			t.Errorf("%d allowances (-want +got):\n%s", count, diff)
		}
	}
}

// TestAllowancesOfAsManyGPUsAsThereCanBe checks that Allowances reads 16 GPUs, and nothing after
// the last GPU.
func TestAllowancesOfAsManyGPUsAsThereCanBe(t *testing.T) {
	l, page := lending(t)
	page.putWords(device0+(limits.MaxDevices-1)*deviceBytes+spentOffset, 9)
	page.putWords(refusals0+spentOffset, 10) // after the last GPU
	got := make([]limits.Allowance, limits.MaxDevices+1)
	if err := l.Allowances(got); err != nil {
		t.Fatal(err)
	}
	if got[limits.MaxDevices-1].Spent != 9 || got[limits.MaxDevices] != (limits.Allowance{}) {
		t.Errorf("the last are %+v", got[limits.MaxDevices-1:])
	}
}

// TestAllowancesOfAPageThatIsCut checks that Allowances fails for a page that a tenant has
// truncated.
func TestAllowancesOfAPageThatIsCut(t *testing.T) {
	l, page := lending(t)
	if err := os.Truncate(page.path, device0+deviceBytes-1); err != nil {
		t.Fatal(err)
	}
	if err := l.Allowances(make([]limits.Allowance, 1)); !errors.Is(err, limits.ErrTruncated) {
		t.Errorf("%v, want ErrTruncated", err)
	}
}

func TestAllowancesOfAPageThatCannotBeRead(t *testing.T) {
	l, _ := openLending(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Allowances(make([]limits.Allowance, 1)); !errors.Is(err, os.ErrClosed) || errors.Is(err, limits.ErrTruncated) {
		t.Errorf("%v, want ErrClosed", err)
	}
}

func TestLend(t *testing.T) {
	const until = 5 << 16
	l, page := lending(t)
	for _, c := range []struct {
		name   string
		device int64
		ppm    uint32
		until  time.Duration
		want   uint64
	}{
		{"a part", 1, 250_000, until, 5<<20 | 250_000},
		{"to the first device", 0, 1, until, 5<<20 | 1},
		{"to the last device", limits.MaxDevices - 1, 2, until, 5<<20 | 2},
		{"until between two units", 1, 250_000, until + 1<<16 - 1, 5<<20 | 250_000},
		{"for longer", 1, 250_000, until + 1<<16, 6<<20 | 250_000},
		{"more than all", 1, 2_000_000, until, 5<<20 | 1_000_000},
		{"nothing", 1, 0, until, 0},
	} {
		l.Lend(int(c.device), c.ppm, c.until)
		if got := page.word(leasesOffset + 8*c.device); got != c.want {
			t.Errorf("%s: the lease is %#x, want %#x", c.name, got, c.want)
		}
	}
}

// TestCloseTakesLeasesBack checks that Close revokes all leases, since nothing renews the leases
// afterwards.
func TestCloseTakesLeasesBack(t *testing.T) {
	l, page := openLending(t)
	for i := range limits.MaxDevices {
		l.Lend(i, 1000, time.Hour)
	}
	l.Beside(0, 7, 1000, time.Hour)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range int64(limits.MaxDevices) {
		if lease := page.word(leasesOffset + 8*i); lease != 0 {
			t.Errorf("device %d keeps the lease %#x", i, lease)
		}
	}
	if others := page.word(othersOffset); others != 7 {
		t.Errorf("others were charged %d, want 7", others)
	}
}

func TestBesideAddsUp(t *testing.T) {
	l, page := lending(t)
	l.Beside(1, 100, 600_000, 3<<16)
	l.Beside(1, 50, 400_000, 4<<16)
	l.Beside(0, 1, 0, 5<<16)
	for offset, want := range map[int64]uint64{
		othersOffset: 1, othersOffset + 8: 150, looksOffset: 5 << 20, looksOffset + 8: 4<<20 | 400_000,
	} {
		if got := page.word(offset); got != want {
			t.Errorf("at %d is %#x, want %#x", offset, got, want)
		}
	}
}

func TestLendingSeesUpdates(t *testing.T) {
	l, page := lending(t)
	for generation := range uint64(3) {
		if got := l.Generation(); got != generation {
			t.Errorf("generation %d, want %d", got, generation)
		}
		want := []limits.Device{device(gpuA, generation, 1), device(gpuB, generation, 1)}
		if err := limits.Update(filepath.Dir(page.path), want); err != nil {
			t.Fatal(err)
		}
		got, err := l.Devices()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after update %d (-want +got):\n%s", generation, diff)
		}
	}
	if !l.Current() {
		t.Error("after updates the pages are taken for replaced")
	}
}

func TestLendingKnowsReplacedPages(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"replaced": func(dir string) error { return limits.Create(dir, nil) },
		"removed":  func(dir string) error { return os.Remove(filepath.Join(dir, limits.LimitsFile)) },
	} {
		l, page := lending(t)
		if !l.Current() {
			t.Error("new pages are not current")
		}
		if err := change(filepath.Dir(page.path)); err != nil {
			t.Fatal(err)
		}
		if l.Current() {
			t.Errorf("%s pages are current", name)
		}
	}
}

func TestLendingReportsCorruptLimits(t *testing.T) {
	l, page := lending(t)
	limitsPage := usagePage{t, filepath.Join(filepath.Dir(page.path), limits.LimitsFile)}
	limitsPage.put(64+16+24, []byte{1}) // the memory of the first GPU
	if got, err := l.Devices(); !errors.Is(err, limits.ErrCorrupt) {
		t.Errorf("%v, %v, want ErrCorrupt", got, err)
	}
}

func TestOpenLendingRefuses(t *testing.T) {
	remove := func(name string) func(dir string) error {
		return func(dir string) error { return os.Remove(filepath.Join(dir, name)) }
	}
	for _, c := range []struct {
		name   string
		change func(dir string) error
		want   error
	}{
		{"no limits page", remove(limits.LimitsFile), os.ErrNotExist},
		{"no usage page", remove(limits.UsageFile), os.ErrNotExist},
		{"a foreign limits page", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, limits.LimitsFile), []byte("memory = 4096\n"), 0o600)
		}, limits.ErrForeign},
	} {
		_, page := lending(t)
		dir := filepath.Dir(page.path)
		if err := c.change(dir); err != nil {
			t.Fatal(err)
		}
		if l, err := limits.OpenLending(dir); !errors.Is(err, c.want) || l != nil {
			t.Errorf("%s: %v, %v, want %v", c.name, l, err, c.want)
		}
	}
}

func TestMonotonicIsTheKernelsClock(t *testing.T) {
	clock := func() time.Duration {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
		return time.Duration(now.Nano())
	}
	if before, got, after := clock(), limits.Monotonic(), clock(); got < before || got > after {
		t.Errorf("%v is not between %v and %v", got, before, after)
	}
}
