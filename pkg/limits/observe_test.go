// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// observedOffset is the offset of the observed bytes, as declared in internal/layout.
const observedOffset = 2160

func observed(t *testing.T, dir string) []uint64 {
	t.Helper()
	got, err := limits.Observed(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestObserve(t *testing.T) {
	dir := t.TempDir()
	devices := []limits.Device{device(gpuA, 4<<30, 1), device(gpuB, 2<<30, 1)}
	if err := limits.Create(dir, devices); err != nil {
		t.Fatal(err)
	}
	if got := observed(t, dir); !cmp.Equal(got, []uint64{0, 0}) {
		t.Errorf("a new page has %d observed bytes", got)
	}
	for _, c := range []struct{ set, want []uint64 }{
		{[]uint64{0, 3 << 30}, []uint64{0, 3 << 30}},
		{[]uint64{1, 4097}, []uint64{4096, 8192}},
		{[]uint64{math.MaxUint64, 0}, []uint64{1 << 50, 0}},
		{[]uint64{0, 0}, []uint64{0, 0}},
	} {
		if err := limits.Observe(dir, c.set); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, observed(t, dir)); diff != "" {
			t.Errorf("after %d (-want +got):\n%s", c.set, diff)
		}
	}
	got, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(devices, got); diff != "" {
		t.Errorf("Observe changed the limits (-want +got):\n%s", diff)
	}
}

// TestObserveNumbersObservations checks that consecutive observations of equal size
// differ, even with an empty observation between them. Processes must detect each observation.
func TestObserveNumbersObservations(t *testing.T) {
	dir := t.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 4<<30, 1)}); err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for i := range 4096 {
		if err := limits.Observe(dir, []uint64{uint64(i%2) << 30}); err != nil {
			t.Fatal(err)
		}
		page, err := os.ReadFile(filepath.Join(dir, limits.LimitsFile))
		if err != nil {
			t.Fatal(err)
		}
		word := binary.LittleEndian.Uint64(page[observedOffset:])
		if seen[word] {
			t.Fatalf("observation %d equals an earlier observation: %#x", i, word)
		}
		seen[word] = true
	}
}

func TestObserveSurvivesUpdate(t *testing.T) {
	dir := t.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 4<<30, 1)}); err != nil {
		t.Fatal(err)
	}
	if err := limits.Observe(dir, []uint64{1 << 30}); err != nil {
		t.Fatal(err)
	}
	if err := limits.Update(dir, []limits.Device{device(gpuA, 2<<30, 1)}); err != nil {
		t.Fatal(err)
	}
	if got := observed(t, dir); got[0] != 1<<30 {
		t.Errorf("%d bytes observed after an update, want %d", got[0], 1<<30)
	}
}

func TestObserveRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := limits.Observe(dir, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no page: %v, want ErrNotExist", err)
	}
	page := filepath.Join(dir, limits.LimitsFile)
	if got, err := limits.Observed(page); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no page: observed %v, %v, want ErrNotExist", got, err)
	}
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	if err := limits.Observe(dir, []uint64{1, 1}); !errors.Is(err, limits.ErrDevicesChanged) {
		t.Errorf("another number of GPUs: %v, want ErrDevicesChanged", err)
	}
	if err := os.WriteFile(page, []byte("memory = 4096\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := limits.Observe(dir, []uint64{1}); !errors.Is(err, limits.ErrForeign) {
		t.Errorf("a foreign page: %v, want ErrForeign", err)
	}
	if got, err := limits.Observed(page); !errors.Is(err, limits.ErrForeign) {
		t.Errorf("a foreign page: observed %v, %v, want ErrForeign", got, err)
	}
}
