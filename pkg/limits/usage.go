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

// maxClaim bounds every byte count claimed on a usage page: more than any GPU
// has. Larger values are clamped to it.
const maxClaim = 1 << 50

// maxCount bounds claimed counts so that sums over all slots cannot overflow.
const maxCount = math.MaxInt64 / (2 * layout.MaxSlots)

// maxNs bounds claimed durations so that they fit a time.Duration.
const maxNs = math.MaxInt64

// Usage is what a container's processes claim on their usage page. All values
// are within bounds; whether they are true, only the driver can tell.
type Usage struct {
	// Devices are in the order of the limits page.
	Devices []DeviceUsage
	// Processes are those that live.
	Processes []ProcessUsage
}

// DeviceUsage is one GPU's sum over a container's processes.
type DeviceUsage struct {
	UsedBytes    uint64
	PendingBytes uint64
	ContextBytes uint64
	// PeakBytes is the most that was used at a time.
	PeakBytes uint64
	GPUTime   time.Duration
	Wait      time.Duration
	Launches  uint64
	Refusals  uint64
	// RefusalsByWay tells Refusals apart, of the container; where its interposer
	// is of a version that did not, WayNone has them.
	RefusalsByWay [WayCount]uint64
	LastRefusal   Refusal
	// Distrust is what the container's interposer makes of its measurements.
	Distrust Distrust
}

const (
	// maxDriftPPM bounds a claimed drift. More is no clock.
	maxDriftPPM = 1000
	// maxSlice bounds a claimed time slice.
	maxSlice = time.Second
)

// Distrust is what a container's interposer found out about its own measurements of one GPU.
type Distrust struct {
	// Uncharged counts claims on others' time that lapsed, as the others were not charged
	// for as much. It wraps around at 32 bits, as Aliased does.
	Uncharged uint32
	// Aliased counts measurements whose probes stood behind the work that they were to
	// tell of.
	Aliased uint32
	// DriftPPM is by how much the GPU's clock is faster than the host's, in parts per
	// million; 0 where it was not measured.
	DriftPPM float64
	// Slice is how long the container has the GPU at a time beside others; 0 where it was
	// not measured.
	Slice time.Duration
}

// ProcessUsage is one live process.
type ProcessUsage struct {
	// PID is in the container's pid namespace.
	PID uint32
	// Name is the short name, with unprintable characters replaced.
	Name string
	// Attached is the time since boot at which the process first used CUDA.
	Attached time.Duration
	Devices  []ProcessDeviceUsage
}

// ProcessDeviceUsage is one process on one GPU.
type ProcessDeviceUsage struct{ DeviceUsage }

// Refusal is an allocation that was refused.
type Refusal struct {
	// Way says how memory was asked for; WayNone where nothing was refused.
	Way Way
	// Bytes is the size asked for.
	Bytes uint64
}

// ReadUsage reads a usage page. Slots of dead processes that nobody has
// reclaimed yet are left out. It takes some milliseconds of a processor at most,
// whatever the tenant does to the page: the error is ErrBusy then.
func ReadUsage(path string) (Usage, error) {
	f, err := openPage(path, os.O_RDONLY)
	if err != nil {
		return Usage{}, fmt.Errorf("open usage page: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Usage{}, fmt.Errorf("look at usage page: %w", err)
	}
	id := idOf(path, info)
	if resting.has(id, time.Now()) {
		return Usage{}, fmt.Errorf("%s: %w", path, ErrBusy)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threadTime()
	held := func(slots int64) ([]bool, error) { return heldSlots(f, slots) }
	usage, err := readUsageFrom(f, info.Size(), held)
	if errors.Is(err, ErrBusy) {
		resting.add(id, time.Now(), threadTime()-begin)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("%s: %w", path, err)
	}
	return usage, nil
}

// readUsageFrom reads a usage page. held returns which of its first slots
// processes hold.
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
	for i := range usage.Devices { // interposers of before keep none of the container
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

// distrust takes claims that are out of bounds for none.
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

// add adds a process to the sums that are kept per process alone; refusals are
// counted for the container by the refused processes themselves.
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

// printable is a name up to its first zero byte, safe for a terminal.
func printable(raw []byte) string {
	name, _, _ := bytes.Cut(raw, []byte{0})
	return string(bytes.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, bytes.ToValidUTF8(name, []byte("?"))))
}
