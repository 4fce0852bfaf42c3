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

// observedUnit is the unit to which nextLook rounds up observed bytes. The lower bits hold the
// observation's number.
const observedUnit = 1 << layout.ObservedLookBits

// Observe writes the agent's measurement of a container's GPU memory to the container's limits
// page. bytes is the memory on each GPU, in the page's order. 0 stands for a GPU on which the
// container holds no more than its usage page states. One store sets each value. Until the next
// call, the container's processes treat the value as their minimum usage, and add their later
// allocations to the value. Therefore the agent must renew or clear an observation: a stale
// observation causes refusals in a container that has freed memory. Only one goroutine at a time
// may call Observe.
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

// nextLook returns the word of an observation of held bytes that follows the word last.
// Observations of 0 bytes also have numbers, so that successive observations stay distinct.
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
