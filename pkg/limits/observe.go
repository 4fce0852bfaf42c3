package limits

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

// observedUnit is what observed bytes are rounded up to: below it stands the
// number of the look.
const observedUnit = 1 << layout.ObservedLookBits

// Observe puts on a container's limits page what the container was seen to hold
// of each of its GPUs, in bytes, in the page's order; 0 is for a GPU on which it
// holds no more than its usage page says. Each value is set by one store, and
// from then on the container's processes take it for the least that they use:
// to it they add what they allocate themselves, until the next call. So an
// observation that is not renewed or cleared refuses memory to a container that
// has freed some since. There must be one caller at a time.
func Observe(dir string, bytes []uint64) error {
	path := filepath.Join(dir, LimitsFile)
	f, err := openPage(path, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("open limits page: %w", err)
	}
	defer f.Close()
	devices, _, err := readLimits(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(bytes) != len(devices) {
		return fmt.Errorf("%w: %s has %d GPUs, %d were observed", ErrDevicesChanged, path, len(devices), len(bytes))
	}
	page, err := unix.Mmap(int(f.Fd()), 0, int(limitsSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map limits page: %w", err)
	}
	for i, held := range bytes {
		word := (*uint64)(unsafe.Pointer(&page[observedOffset+uintptr(i)*8]))
		atomic.StoreUint64(word, nextLook(atomic.LoadUint64(word), held))
	}
	return unix.Munmap(page)
}

// nextLook is the word of a look that found `held` bytes after that of `last`.
// That of one that found nothing amiss has a number, too: otherwise the next
// could look like the last.
func nextLook(last, held uint64) uint64 {
	held = (min(held, maxClaim) + observedUnit - 1) / observedUnit * observedUnit
	return held | (last+1)%observedUnit
}

// Observed is what was last put on a limits page by Observe, rounded up to 4 KiB.
func Observed(path string) ([]uint64, error) {
	f, err := openPage(path, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open limits page: %w", err)
	}
	defer f.Close()
	devices, _, err := readLimits(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	page, err := readPage(f, limitsSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	observed := make([]uint64, len(devices))
	for i := range observed {
		word := binary.LittleEndian.Uint64(page[observedOffset+uintptr(i)*8:])
		observed[i] = word / observedUnit * observedUnit
	}
	return observed, nil
}
