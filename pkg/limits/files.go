// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/leased"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

// UsageBytes is the size of a usage page.
const UsageBytes = usageSize

// Create writes a container's limits page and an empty usage page into dir, which must exist.
// Create writes each page atomically and syncs the page to disk. Create replaces existing pages;
// processes that map the old pages keep the old pages. Every user may read the limits page, and
// read and write the usage page, since a container's processes may run as any user. Other
// containers cannot access the pages, since only the container mounts the pages. The usage page can
// grow until dir's file system is full.
func Create(dir string, devices []Device) error {
	return create(dir, devices, func(path string, header []byte) error {
		usage, err := stage(path, 0o666, header, usageSize)
		if err != nil {
			return err
		}
		return putInPlace(usage)
	})
}

// CreateApart is like Create, but writes the usage page to an empty file in another
// directory, and links to the file from dir. The file system of the usage page must
// have room for the page, and bounds how much of the file a process can map.
func CreateApart(dir string, usage *os.File, devices []Device) error {
	return create(dir, devices, func(path string, header []byte) error {
		if err := fill(usage, header, usageSize); err != nil {
			return err
		}
		if err := usage.Chmod(0o666); err != nil {
			return fmt.Errorf("make page accessible: %w", err)
		}
		target, err := filepath.Rel(dir, usage.Name())
		if err != nil {
			return fmt.Errorf("find page: %w", err)
		}
		if err := renameio.Symlink(target, path); err != nil {
			return fmt.Errorf("rename page into place: %w", err)
		}
		return nil
	})
}

func create(dir string, devices []Device, putUsage func(path string, header []byte) error) error {
	page, err := newLimitsPage(devices)
	if err != nil {
		return err
	}
	limits, err := stage(filepath.Join(dir, LimitsFile), 0o644, page, limitsSize)
	if err != nil {
		return err
	}
	if err := putUsage(filepath.Join(dir, UsageFile), newUsageHeader(len(devices))); err != nil {
		return errors.Join(err, limits.Cleanup())
	}
	// create writes the limits page last: if the limits page exists, the usage page also exists.
	if err := putInPlace(limits); err != nil {
		return err
	}
	return syncDir(dir)
}

// stage writes content, extended with zeros to size, to a temporary file beside
// path.
func stage(path string, mode os.FileMode, content []byte, size int64) (*renameio.PendingFile, error) {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(mode), renameio.IgnoreUmask())
	if err != nil {
		return nil, fmt.Errorf("create page: %w", err)
	}
	if err := fill(f.File, content, size); err != nil {
		return nil, errors.Join(err, f.Cleanup())
	}
	return f, nil
}

func fill(f *os.File, content []byte, size int64) error {
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	if err := f.Truncate(size); err != nil {
		return fmt.Errorf("extend page: %w", err)
	}
	return nil
}

// putInPlace syncs a file to disk and renames it to its path.
func putInPlace(f *renameio.PendingFile) error {
	if err := f.CloseAtomicallyReplace(); err != nil {
		return errors.Join(fmt.Errorf("rename page into place: %w", err), f.Cleanup())
	}
	return nil
}

// openPage opens an existing page. openPage does not wait for the end of a lease: a tenant may have
// taken a lease on its page. A lease on a limits page ends soon after.
func openPage(path string, flag int) (*os.File, error) {
	f, err := leased.Open(path, flag)
	if errors.Is(err, leased.Err) {
		ending.end(path)
		return nil, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return f, err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("write directory to disk: %w", err)
	}
	return nil
}

// Update changes the limits in place. Running processes read the new limits at their next
// allocation. The GPUs must be the page's GPUs in the same order, since the usage page identifies
// GPUs by position. If the writer dies during Update, the old limits stay in force. Only one goroutine
// at a time may call Update: by a lock on the page, the page's tenant could hold the writer up.
func Update(dir string, devices []Device) error {
	path := filepath.Join(dir, LimitsFile)
	f, err := openPage(path, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("open limits page: %w", err)
	}
	defer f.Close()
	old, generation, err := readLimits(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := sameDevices(old, devices); err != nil {
		return err
	}
	next, err := encodeCopy(generation+1, devices)
	if err != nil {
		return err
	}
	return activate(f, next, generation+1)
}

func sameDevices(old, devices []Device) error {
	if len(old) != len(devices) {
		return fmt.Errorf("%w: the page has %d, not %d", ErrDevicesChanged, len(old), len(devices))
	}
	for i := range old {
		if old[i].UUID != devices[i].UUID {
			return fmt.Errorf("%w: GPU %d of the page is %s, not %s", ErrDevicesChanged, i, old[i].UUID, devices[i].UUID)
		}
	}
	return nil
}

// activate writes the copy of a new generation beside the active copy, and switches to the new copy
// with one atomic store.
func activate(f *os.File, next []byte, generation uint64) error {
	page, err := unix.Mmap(int(f.Fd()), 0, int(limitsSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map limits page: %w", err)
	}
	copy(page[copyOffset(generation):], next)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&page[generationOff])), generation)
	if err := unix.Msync(page, unix.MS_SYNC); err != nil {
		return errors.Join(fmt.Errorf("write limits page to disk: %w", err), unix.Munmap(page))
	}
	return unix.Munmap(page)
}

func copyOffset(generation uint64) uintptr {
	return copiesOffset + uintptr(generation&1)*copySize
}

// Read returns the limits on a limits page.
func Read(path string) ([]Device, error) {
	f, err := openPage(path, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open limits page: %w", err)
	}
	defer f.Close()
	devices, _, err := readLimits(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return devices, nil
}

// readAttempts bounds the retries of a reader that collides with writers. Each
// collision requires two switches while the reader copies 4 KiB.
const readAttempts = 100

func readLimits(f *os.File) ([]Device, uint64, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("stat limits page: %w", err)
	}
	return readLimitsFrom(f, info.Size())
}

func readLimitsFrom(file io.ReaderAt, size int64) ([]Device, uint64, error) {
	var lastErr error
	for range readAttempts {
		page, err := readPage(file, size)
		if err != nil {
			return nil, 0, err
		}
		generation := binary.LittleEndian.Uint64(page[generationOff:])
		devices, err := decodeCopy(page[copyOffset(generation):][:copySize], generation)
		if err == nil {
			return devices, generation, nil
		}
		lastErr = err
		runtime.Gosched()
	}
	return nil, 0, lastErr
}

func readPage(file io.ReaderAt, size int64) ([]byte, error) {
	page := make([]byte, limitsSize)
	n, err := file.ReadAt(page, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read limits page: %w", err)
	}
	return page, checkHead(page[:n], layout.LimitsMagic, size, limitsSize)
}
