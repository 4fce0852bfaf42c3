// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/usagefs"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/ownmounts"
)

// grown returns a usage page that grow has changed as a tenant could. The page is on a file system
// in memory, like the node's /run.
func grown(t *testing.T, grow func(page *os.File) error) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nri-vgpu-cut-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1)}); err != nil {
		t.Fatal(err)
	}
	page, err := os.OpenFile(filepath.Join(dir, limits.UsageFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := grow(page); err != nil {
		t.Fatal(err)
	}
	return page.Name()
}

func size(t *testing.T, path string) (length, memory int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size(), info.Sys().(*syscall.Stat_t).Blocks * 512
}

func TestCutPagesThatHaveGrown(t *testing.T) {
	const (
		much = 16 << 20
		most = 4 << 20 // the most memory that the kernel allocates for a page that has not grown
	)
	allocate := func(mode uint32, bytes int64) func(*os.File) error {
		return func(page *os.File) error { return unix.Fallocate(int(page.Fd()), mode, 0, bytes) }
	}
	for name, test := range map[string]struct {
		grow func(*os.File) error
		was  int64
	}{
		"nothing":           {func(*os.File) error { return nil }, 0},
		"all of the page":   {allocate(0, limits.UsageBytes), 0},
		"longer":            {allocate(0, much), much},
		"beyond its end":    {allocate(unix.FALLOC_FL_KEEP_SIZE, much), much},
		"whole huge pages":  {allocate(unix.FALLOC_FL_KEEP_SIZE, most), 0},
		"a page more":       {allocate(unix.FALLOC_FL_KEEP_SIZE, most+4096), most + 4096},
		"a byte longer":     {func(f *os.File) error { return f.Truncate(limits.UsageBytes + 1) }, limits.UsageBytes + 1},
		"longer, and empty": {func(f *os.File) error { return f.Truncate(1 << 40) }, 1 << 40},
		"written":           {func(f *os.File) error { _, err := f.WriteAt(make([]byte, 1), much-1); return err }, much},
	} {
		t.Run(name, func(t *testing.T) {
			path := grown(t, test.grow)
			if was, err := limits.Cut(path); err != nil || was != test.was {
				t.Errorf("it was %d bytes, %v, want %d", was, err, test.was)
			}
			if length, memory := size(t, path); length != limits.UsageBytes || memory > 4<<20 {
				t.Errorf("it has %d bytes and takes %d", length, memory)
			}
			if _, err := limits.ReadUsage(path); err != nil {
				t.Errorf("the page's content is lost: %v", err)
			}
		})
	}
}

func TestCutLeavesPagesThatAreTooShort(t *testing.T) {
	path := grown(t, func(page *os.File) error { return page.Truncate(0) })
	if was, err := limits.Cut(path); err != nil || was != 0 {
		t.Errorf("it was %d bytes, %v", was, err)
	}
	if _, err := limits.ReadUsage(path); !errors.Is(err, limits.ErrForeign) && !errors.Is(err, limits.ErrTruncated) {
		t.Errorf("it is read: %v", err)
	}
}

// TestPagesOnTheirFileSystemsAreNotCut checks that a page on a separate file system stays as it is,
// and can still be read. The page takes no further memory.
func TestPagesOnTheirFileSystemsAreNotCut(t *testing.T) {
	if !ownmounts.Run(t) {
		return
	}
	mounts := usagefs.New(filepath.Join(ownmounts.Small(t), "usage"), limits.UsageFile, limits.UsageBytes)
	page, err := mounts.Make("pod", "main")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := limits.CreateApart(t.TempDir(), page, []limits.Device{device(gpuA, 1<<30, 1)}); err != nil {
		t.Fatal(err)
	}
	if was, err := limits.Cut(page.Name()); was != 0 || err != nil {
		t.Errorf("a page that has not grown was %d bytes: %v", was, err)
	}
	if err := page.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if was, err := limits.Cut(page.Name()); was != 1<<30 || err != nil {
		t.Errorf("it was %d bytes: %v", was, err)
	}
	if length, _ := size(t, page.Name()); length != 1<<30 {
		t.Errorf("it has %d bytes", length)
	}
	if usage, err := limits.ReadUsage(page.Name()); err != nil || len(usage.Devices) != 1 {
		t.Errorf("it is read as %+v: %v", usage, err)
	}
}
