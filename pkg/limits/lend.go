// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

const (
	leasesOffset  = unsafe.Offsetof(layout.LimitsPage{}.Leases)
	devicesOffset = unsafe.Offsetof(layout.UsageHeader{}.Devices)
	deviceSize    = unsafe.Sizeof(layout.ContainerDevice{})
	balanceOffset = unsafe.Offsetof(layout.ContainerDevice{}.BucketNs)
	filledOffset  = unsafe.Offsetof(layout.ContainerDevice{}.BucketFilledNs)
	othersOffset  = unsafe.Offsetof(layout.LimitsPage{}.Others)
	looksOffset   = unsafe.Offsetof(layout.LimitsPage{}.OthersLooks)
	spentOffset   = unsafe.Offsetof(layout.ContainerDevice{}.SpentNs)
)

// Allowance is a container's claimed allowance of one GPU's time. A tenant may forge any field.
type Allowance struct {
	// Spent is all GPU time taken from the allowance, in ns; Spent wraps around.
	Spent uint64
	// Balance is the remaining allowance, in ns; a negative Balance is a debt.
	Balance int64
	// Filled is the time of the allowance's last refill, as a time of [Monotonic].
	Filled time.Duration
}

// Monotonic returns the kernel's CLOCK_MONOTONIC, the clock of allowances and leases.
func Monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // ClockGettime fails only for unknown clocks
	return time.Duration(now.Nano())
}

// Lending is a container's two open pages. The agent reads the use of the GPUs' time from the usage
// page, and lends time by the limits page.
//
// Lending does not map the usage page. A tenant may truncate the page, and access to a mapping
// beyond the file's end would kill the agent.
type Lending struct {
	page  []byte // the limits page
	usage *os.File
	raw   []byte
	info  os.FileInfo // of the limits page
	path  string
}

// OpenLending opens the pages in a container's directory.
func OpenLending(dir string) (*Lending, error) {
	l := &Lending{path: filepath.Join(dir, LimitsFile), raw: make([]byte, slotsOffset)}
	file, err := openPage(l.path, os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("open limits page: %w", err)
	}
	defer file.Close()
	if l.info, err = file.Stat(); err != nil {
		return nil, fmt.Errorf("stat limits page: %w", err)
	}
	if _, _, err := readLimits(file); err != nil {
		return nil, fmt.Errorf("%s: %w", l.path, err)
	}
	if l.usage, err = openPage(filepath.Join(dir, UsageFile), os.O_RDONLY); err != nil {
		return nil, fmt.Errorf("open usage page: %w", err)
	}
	l.page, err = unix.Mmap(int(file.Fd()), 0, int(limitsSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map limits page: %w", err), l.usage.Close())
	}
	return l, nil
}

// Close revokes the leases and closes the pages.
func (l *Lending) Close() error {
	for i := range MaxDevices {
		l.Lend(i, 0, 0)
	}
	return errors.Join(unix.Munmap(l.page), l.usage.Close())
}

// Current reports whether the open pages are still the pages in the container's directory.
func (l *Lending) Current() bool {
	info, err := os.Stat(l.path)
	return err == nil && os.SameFile(info, l.info)
}

// Generation returns the number of changes of the limits.
func (l *Lending) Generation() uint64 { return atomic.LoadUint64(l.word(generationOff)) }

// Devices returns the limits in force.
func (l *Lending) Devices() ([]Device, error) {
	var err error
	for range readAttempts {
		generation := l.Generation()
		var devices []Device
		if devices, err = decodeCopy(l.page[copyOffset(generation):][:copySize], generation); err == nil {
			return devices, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", l.path, err)
}

// Allowances reads the container's claims for its first len(allowances) devices.
func (l *Lending) Allowances(allowances []Allowance) error {
	allowances = allowances[:min(len(allowances), MaxDevices)]
	raw := l.raw[:devicesOffset+uintptr(len(allowances))*deviceSize]
	if n, err := l.usage.ReadAt(raw, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: %d bytes", ErrTruncated, n)
		}
		return fmt.Errorf("read usage page: %w", err)
	}
	for i := range allowances {
		device := raw[devicesOffset+uintptr(i)*deviceSize:]
		allowances[i] = Allowance{
			Spent:   binary.LittleEndian.Uint64(device[spentOffset:]),
			Balance: int64(binary.LittleEndian.Uint64(device[balanceOffset:])),
			Filled:  duration(binary.LittleEndian.Uint64(device[filledOffset:])),
		}
	}
	return nil
}

// Lend allows the container to use a part of a device's time, in parts per million, until a time
// of [Monotonic]. A container whose limit is not a guarantee ignores the lease.
func (l *Lending) Lend(device int, ppm uint32, until time.Duration) {
	word := uint64(0)
	if ppm > 0 {
		word = partAt(ppm, until)
	}
	at := l.word(leasesOffset + uintptr(device)*8)
	if atomic.LoadUint64(at) != word {
		atomic.StoreUint64(at, word)
	}
}

// Beside adds the GPU time charged to the other containers of a device since the last call, up to
// now, a time of [Monotonic]. Beside also publishes the part of the device's time that the other
// containers may have, in parts per million. The container deducts at most the published values
// from the measured time of its work.
func (l *Lending) Beside(device int, charged time.Duration, ppm uint32, now time.Duration) {
	others := l.word(othersOffset + uintptr(device)*8)
	atomic.StoreUint64(others, *others+uint64(charged)) // the agent is the only writer
	atomic.StoreUint64(l.word(looksOffset+uintptr(device)*8), partAt(ppm, now))
}

// partAt packs a part of a device's time, and the point in time of [Monotonic] for which it holds,
// into a word.
func partAt(ppm uint32, at time.Duration) uint64 {
	return uint64(at)>>layout.LeaseUnitBits<<layout.LeasePPMBits | uint64(min(ppm, NoComputeLimit))
}

func (l *Lending) word(offset uintptr) *uint64 { return (*uint64)(unsafe.Pointer(&l.page[offset])) }
