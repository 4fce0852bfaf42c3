// SPDX-License-Identifier: Apache-2.0

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

// observedUnit is the unit to which observed bytes are rounded up. The lower bits
// hold the observation's number.
const observedUnit = 1 << layout.ObservedLookBits

// Observe writes to a container's limits page the memory that the container was
// observed to hold on each GPU, in bytes, in the page's order. 0 stands for a GPU
// on which the container holds no more than its usage page states. One store sets
// each value. From then on, the container's processes treat the value as their
// minimum usage, and add their own allocations to it until the next call. Therefore, if an
// observation is neither renewed nor cleared, a container that has freed memory meanwhile is
// refused memory. Only one goroutine at a time may call Observe.
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

// nextLook returns the word of an observation of `held` bytes that follows the
// word `last`. Clean observations are numbered too, so that successive
// observations stay distinct.
func nextLook(last, held uint64) uint64 {
	held = (min(held, maxClaim) + observedUnit - 1) / observedUnit * observedUnit
	return held | (last+1)%observedUnit
}

// Observed returns the values that Observe last wrote to a limits page, rounded
// up to 4 KiB.
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
