// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"time"
	"unicode"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

// maxClaim bounds every byte count claimed on a usage page. maxClaim exceeds any GPU's memory.
// ReadUsage clamps larger claims to maxClaim.
const maxClaim = 1 << 50

// maxCount bounds claimed counts so that sums over all slots cannot overflow.
const maxCount = math.MaxInt64 / (2 * layout.MaxSlots)

// maxNs bounds claimed durations so that they fit a time.Duration.
const maxNs = math.MaxInt64

// Usage is the claims of a container's processes on their usage page. ReadUsage clamps all values
// to their bounds, but only the driver can confirm the values.
type Usage struct {
	// Devices are in the order of the limits page.
	Devices []DeviceUsage
	// Processes are the live processes.
	Processes []ProcessUsage
}

// DeviceUsage is the usage of one GPU, summed over a container's processes.
type DeviceUsage struct {
	UsedBytes    uint64
	PendingBytes uint64
	ContextBytes uint64
	// PeakBytes is the most memory used at the same time.
	PeakBytes uint64
	GPUTime   time.Duration
	Wait      time.Duration
	Launches  uint64
	Refusals  uint64
	// RefusalsByWay counts the container's Refusals by way. WayNone counts the refusals of
	// interposers that do not record the way.
	RefusalsByWay [WayCount]uint64
	LastRefusal   Refusal
	// Distrust holds the measurement errors that the container's interposer detected.
	Distrust Distrust
}

const (
	// maxDriftPPM bounds a claimed drift. No real clock drifts more.
	maxDriftPPM = 1000
	// maxSlice bounds a claimed time slice.
	maxSlice = time.Second
)

// Distrust holds the errors that a container's interposer detected in its own measurements
// of one GPU.
type Distrust struct {
	// Uncharged counts the claims on other containers' time that lapsed because the other
	// containers were charged less. Uncharged and Aliased wrap around at 32 bits.
	Uncharged uint32
	// Aliased counts the measurements whose probes completed only with the end of the
	// measured work.
	Aliased uint32
	// DriftPPM is the rate by which the GPU's clock is faster than the host's, in parts per
	// million; 0 means unknown.
	DriftPPM float64
	// Slice is the container's GPU time slice beside other containers; 0 means unknown.
	Slice time.Duration
}

// ProcessUsage is the usage of one live process.
type ProcessUsage struct {
	// PID is the process id in the container's pid namespace.
	PID uint32
	// Name is the short name, with unprintable characters replaced.
	Name string
	// Attached is the time since boot at which the process first used CUDA.
	Attached time.Duration
	Devices  []ProcessDeviceUsage
}

// ProcessDeviceUsage is the usage of one process on one GPU.
type ProcessDeviceUsage struct{ DeviceUsage }

// Refusal is a refused allocation.
type Refusal struct {
	// Way is the way of allocating; WayNone means no refusal.
	Way Way
	// Bytes is the requested size.
	Bytes uint64
}

// ReadUsage reads a usage page. ReadUsage omits unreclaimed slots of dead processes. ReadUsage
// takes at most some milliseconds of processor time, whatever the tenant does to the page. If the
// page's locks take longer, ReadUsage fails with ErrBusy.
func ReadUsage(path string) (Usage, error) {
	f, err := openPage(path, os.O_RDONLY)
	if err != nil {
		return Usage{}, fmt.Errorf("open usage page: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Usage{}, fmt.Errorf("stat usage page: %w", err)
	}
	id := idOf(path, info)
	if resting.has(id, time.Now()) {
		return Usage{}, fmt.Errorf("%s: %w", path, ErrBusy)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threadTime()
	held := func(slots int64) ([]bool, error) { return heldSlots(f, slots) }
	usage, err := readUsageFrom(f, min(info.Size(), usageSize), held) // a tenant may have extended the page
	if errors.Is(err, ErrBusy) {
		resting.add(id, time.Now(), threadTime()-begin)
	} else {
		resting.drop(id, time.Now())
	}
	if err != nil {
		return Usage{}, fmt.Errorf("%s: %w", path, err)
	}
	return usage, nil
}

// readUsageFrom reads a usage page. held reports for each of the page's first slots whether a
// process has locked it.
func readUsageFrom(file io.ReaderAt, size int64, held func(slots int64) ([]bool, error)) (Usage, error) {
	header, err := readUsageHeader(file, size)
	if err != nil {
		return Usage{}, err
	}
	usage := Usage{Devices: make([]DeviceUsage, header.DeviceCount)}
	for i := range usage.Devices {
		usage.Devices[i] = retiredUsage(&header.Devices[i], &header.Refusals[i])
		usage.Devices[i].Distrust = distrust(&header.Distrust[i])
	}
	live, err := held(int64(header.HighWater))
	if err != nil {
		return Usage{}, err
	}
	raw := make([]byte, slotSize)
	for i, lives := range live {
		if !lives {
			continue
		}
		if _, err := file.ReadAt(raw, slotsOffset+int64(i)*slotSize); err != nil {
			return Usage{}, fmt.Errorf("read usage page: %w", err)
		}
		usage.add(raw)
	}
	for i := range usage.Devices { // older interposers record no peak of the container
		usage.Devices[i].PeakBytes = max(usage.Devices[i].PeakBytes, usage.Devices[i].UsedBytes)
	}
	return usage, nil
}

func readUsageHeader(file io.ReaderAt, size int64) (*layout.UsageHeader, error) {
	raw := make([]byte, slotsOffset)
	n, err := file.ReadAt(raw, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read usage page: %w", err)
	}
	if err := checkHead(raw[:n], layout.UsageMagic, size, usageSize); err != nil {
		return nil, err
	}
	var h layout.UsageHeader
	decode(raw, &h)
	if h.DeviceCount > MaxDevices || h.HighWater > layout.MaxSlots {
		return nil, fmt.Errorf("%w: it claims %d GPUs and %d processes", ErrCorrupt, h.DeviceCount, h.HighWater)
	}
	return &h, nil
}

func (u *Usage) add(raw []byte) {
	var s layout.Slot
	decode(raw, &s)
	p := ProcessUsage{
		PID: s.PID, Name: printable(s.Name[:]), Attached: duration(s.AttachedNs),
		Devices: make([]ProcessDeviceUsage, len(u.Devices)),
	}
	for i := range u.Devices {
		p.Devices[i] = slotUsage(&s.Devices[i])
		u.Devices[i].add(&p.Devices[i].DeviceUsage)
	}
	u.Processes = append(u.Processes, p)
}

func slotUsage(d *layout.SlotDevice) ProcessDeviceUsage {
	return ProcessDeviceUsage{DeviceUsage{
		UsedBytes: min(d.Used, maxClaim), PendingBytes: min(d.Pending, maxClaim),
		ContextBytes: min(d.ContextBytes, maxClaim), PeakBytes: min(d.Peak, maxClaim),
		GPUTime: duration(d.GPUTimeNs), Wait: duration(d.WaitNs), Launches: min(d.Launches, maxCount),
		Refusals: min(d.Refusals, maxCount), LastRefusal: unpackRefusal(d.LastRefusal),
	}}
}

func retiredUsage(d *layout.ContainerDevice, refused *layout.WayRefusals) DeviceUsage {
	u := DeviceUsage{
		PeakBytes: min(d.Peak, maxClaim),
		GPUTime:   duration(d.RetiredGPUTimeNs), Wait: duration(d.RetiredWaitNs), Launches: min(d.RetiredLaunches, maxCount),
		Refusals: min(d.Refusals, maxCount), LastRefusal: unpackRefusal(d.LastRefusal),
	}
	told := uint64(0)
	for way, count := range refused.Counts {
		u.RefusalsByWay[way] = min(count, maxCount)
		told = min(told+u.RefusalsByWay[way], maxCount)
	}
	if u.Refusals > told {
		u.RefusalsByWay[WayNone] += u.Refusals - told
	}
	return u
}

// distrust converts the claims, and treats a claim out of bounds as not measured.
func distrust(d *layout.Distrust) Distrust {
	claim := Distrust{Uncharged: d.Uncharged, Aliased: d.Aliased}
	if ppm := float64(int32(d.DriftPPB)) / 1000; math.Abs(ppm) <= maxDriftPPM {
		claim.DriftPPM = ppm
	}
	if slice := time.Duration(d.SliceNs); slice <= maxSlice {
		claim.Slice = slice
	}
	return claim
}

// add adds a process to the sums, except to the counts of refusals: a refused process also counts
// its refusals for the container.
func (u *DeviceUsage) add(p *DeviceUsage) {
	u.UsedBytes += p.UsedBytes
	u.PendingBytes += p.PendingBytes
	u.ContextBytes += p.ContextBytes
	u.PeakBytes = max(u.PeakBytes, p.PeakBytes)
	u.GPUTime = duration(uint64(u.GPUTime) + uint64(p.GPUTime))
	u.Wait = duration(uint64(u.Wait) + uint64(p.Wait))
	u.Launches += p.Launches
}

func unpackRefusal(packed uint64) Refusal {
	return Refusal{
		Way:   Way(packed >> layout.RefusalSizeBits),
		Bytes: packed & (1<<layout.RefusalSizeBits - 1),
	}
}

func duration(ns uint64) time.Duration { return time.Duration(min(ns, maxNs)) }

// printable returns a name up to its first zero byte, safe for a terminal.
func printable(raw []byte) string {
	name, _, _ := bytes.Cut(raw, []byte{0})
	return string(bytes.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, bytes.ToValidUTF8(name, []byte("?"))))
}
