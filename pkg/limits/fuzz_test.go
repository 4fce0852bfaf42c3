package limits_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// FuzzRead: no limits page crashes a reader, and what is accepted can be
// written again, so nothing out of bounds gets through.
func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1), device(migA, 2<<30, 500_000)}); err != nil {
		f.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, limits.LimitsFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(page)
	f.Add(page[:64])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), limits.LimitsFile)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		devices, err := limits.Read(path)
		if err != nil {
			return
		}
		if err := limits.Create(t.TempDir(), devices); err != nil {
			t.Errorf("accepted limits that cannot be written: %v", err)
		}
	})
}

// FuzzReadUsage writes tenant data over a usage page's head and slots: no
// content crashes the reader or makes it report unbounded values.
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
	f.Add([]byte{}, []byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, head, slot []byte) {
		p := newUsagePage(t, device(gpuA, 1<<30, 1))
		p.put(0, head)
		p.put(slotsOffset, slot)
		p.hold(0)
		usage, err := limits.ReadUsage(p.path)
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
