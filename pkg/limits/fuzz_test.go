// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// These constants are offsets of the limits page, as declared in internal/layout.
const (
	copiesOffset   = 64
	copySize       = 1048
	checksumOffset = 1040
)

// seal corrects the checksums of a limits page, so that its content passes the
// checks.
func seal(page []byte) {
	for at := copiesOffset; at < copiesOffset+2*copySize; at += copySize {
		sum := fnv.New64a()
		sum.Write(page[at : at+checksumOffset])
		binary.LittleEndian.PutUint64(page[at+checksumOffset:], sum.Sum64())
	}
}

// FuzzRead overwrites parts of a limits page, with valid or invalid checksums, and truncates the
// page. No content may crash a reader. The encoder must accept all content that the reader accepts,
// so that the reader accepts no value out of bounds.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1), device(migA, 2<<30, 500_000)}); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), []byte{}, uint16(0), false)
	f.Add(uint16(16), []byte{1}, uint16(0), true)                   // the other copy
	f.Add(uint16(copiesOffset+8), []byte{17}, uint16(0), true)      // GPUs
	f.Add(uint16(copiesOffset+16+16), []byte{3}, uint16(0), true)   // a kind
	f.Add(uint16(copiesOffset+16+20), []byte{255}, uint16(0), true) // compute
	f.Add(uint16(copiesOffset+16+40), []byte{3}, uint16(0), true)   // time lent by MPS
	f.Add(uint16(0), []byte{}, uint16(64), false)
	f.Fuzz(func(t *testing.T, at uint16, patch []byte, cut uint16, sealed bool) {
		page := bytes.Clone(whole)
		copy(page[int(at)%len(page):], patch)
		if sealed {
			seal(page)
		}
		page = page[:len(page)-int(cut)%(len(page)+1)]
		devices, err := limits.Decode(page)
		if err != nil {
			return
		}
		again, err := limits.Encode(devices)
		if err != nil {
			t.Fatalf("accepted limits that cannot be written: %v", err)
		}
		if got, err := limits.Decode(again); err != nil || !slices.Equal(got, devices) {
			t.Errorf("%+v became %+v when written: %v", devices, got, err)
		}
	})
}

// FuzzReadUsage writes tenant data over a usage page's head and slots. No content may crash the
// reader or make the reader return unbounded values.
func FuzzReadUsage(f *testing.F) {
	dir := f.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1)}); err != nil {
		f.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, limits.UsageFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(page[:4096], page[4096:4096+slotSize])
	crowded := bytes.Clone(page[:4096])
	crowded[highWaterOffset] = 3
	f.Add(crowded, []byte{1, 2, 3})
	f.Add([]byte{}, []byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, head, slot []byte) {
		usage, err := limits.DecodeUsage(tornPage{page, head, slot}, int64(len(page)))
		if err != nil {
			return
		}
		if len(usage.Devices) > limits.MaxDevices || len(usage.Processes) > 1024 {
			t.Errorf("%d GPUs, %d processes", len(usage.Devices), len(usage.Processes))
		}
		for _, d := range usage.Devices {
			if d.UsedBytes > 1024<<50 || d.GPUTime < 0 || d.Wait < 0 {
				t.Errorf("unbounded claim %+v", d)
			}
		}
	})
}

// tornPage is a usage page with other content at its start and in all slots.
type tornPage struct{ page, head, slot []byte }

func (p tornPage) ReadAt(to []byte, offset int64) (int, error) {
	n := copy(to, p.page[offset:])
	if offset == 0 {
		copy(to, p.head)
	}
	if offset >= slotsOffset {
		copy(to, p.slot)
	}
	return n, nil
}
