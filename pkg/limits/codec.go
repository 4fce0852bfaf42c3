// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"unsafe"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

const (
	limitsSize = int64(unsafe.Sizeof(layout.LimitsPage{}))
	usageSize  = int64(unsafe.Sizeof(layout.UsagePage{}))
	slotSize   = int64(unsafe.Sizeof(layout.Slot{}))

	slotsOffset = int64(unsafe.Offsetof(layout.UsagePage{}.Slots))

	copySize       = unsafe.Sizeof(layout.LimitsCopy{})
	checkedSize    = unsafe.Offsetof(layout.LimitsCopy{}.Checksum)
	copiesOffset   = unsafe.Offsetof(layout.LimitsPage{}.Copies)
	generationOff  = unsafe.Offsetof(layout.LimitsPage{}.Generation)
	observedOffset = unsafe.Offsetof(layout.LimitsPage{}.Observed)
)

// encodeCopy validates the devices and encodes them as the copy of a generation.
func encodeCopy(generation uint64, devices []Device) ([]byte, error) {
	if len(devices) > MaxDevices {
		return nil, fmt.Errorf("%w: %d GPUs, a container can have %d", ErrInvalid, len(devices), MaxDevices)
	}
	c := layout.LimitsCopy{Generation: generation, DeviceCount: uint32(len(devices))}
	seen := map[[16]uint8]bool{}
	for i, d := range devices {
		entry, err := encodeDevice(d)
		if err != nil {
			return nil, err
		}
		if seen[entry.UUID] {
			return nil, fmt.Errorf("%w: %q is named twice", ErrInvalid, d.UUID)
		}
		seen[entry.UUID] = true
		c.Devices[i] = entry
	}
	raw := encode(&c)
	binary.LittleEndian.PutUint64(raw[checkedSize:], checksum(raw))
	return raw, nil
}

func encodeDevice(d Device) (layout.LimitsDevice, error) {
	uuid, kind, err := parseUUID(d.UUID)
	if err != nil {
		return layout.LimitsDevice{}, err
	}
	if err := d.check(); err != nil {
		return layout.LimitsDevice{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	entry := layout.LimitsDevice{
		UUID: uuid, Kind: kind,
		MemoryBytes: d.MemoryBytes, ComputePPM: d.ComputePPM, ContextBytes: d.ContextBytes,
	}
	if d.MaximumPPM != 0 {
		entry.Flags, entry.MaximumPPM = layout.FlagShare, d.MaximumPPM
	}
	if d.MPS {
		entry.Flags |= layout.FlagMPS
		entry.Multiprocessors = uint32(d.Multiprocessors)
	}
	return entry, nil
}

// check returns an error if a limits page cannot hold the device's limits.
func (d Device) check() error {
	switch {
	case d.ComputePPM == 0 || d.ComputePPM > NoComputeLimit:
		return fmt.Errorf("compute of %q is %d ppm, want 1 to %d", d.UUID, d.ComputePPM, NoComputeLimit)
	case d.MaximumPPM != 0 && (d.MaximumPPM <= d.ComputePPM || d.MaximumPPM > NoComputeLimit):
		return fmt.Errorf("maximum of %q is %d ppm, want 0 or %d to %d", d.UUID, d.MaximumPPM, d.ComputePPM+1, NoComputeLimit)
	case d.MPS && d.MaximumPPM != 0:
		return fmt.Errorf("%q is held by MPS, which lends no time", d.UUID)
	case d.MPS && (d.Multiprocessors < 0 || d.Multiprocessors > math.MaxInt32):
		return fmt.Errorf("%q has %d multiprocessors", d.UUID, d.Multiprocessors)
	default:
		return nil
	}
}

// decodeCopy decodes a copy that encodeCopy has encoded. decodeCopy fails if the copy is damaged or
// has another generation.
func decodeCopy(raw []byte, generation uint64) ([]Device, error) {
	var c layout.LimitsCopy
	decode(raw, &c)
	if c.Checksum != checksum(raw) {
		return nil, fmt.Errorf("%w: checksum is %#x, want %#x", ErrCorrupt, c.Checksum, checksum(raw))
	}
	if c.Generation != generation || c.DeviceCount > MaxDevices {
		return nil, fmt.Errorf("%w: generation %d with %d GPUs in the copy of generation %d",
			ErrCorrupt, c.Generation, c.DeviceCount, generation)
	}
	devices := make([]Device, 0, c.DeviceCount)
	seen := map[[16]uint8]bool{}
	for _, entry := range c.Devices[:c.DeviceCount] {
		d, err := decodeDevice(&entry)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if seen[entry.UUID] {
			return nil, fmt.Errorf("%w: it lists GPU %q twice", ErrCorrupt, d.UUID)
		}
		seen[entry.UUID] = true
		devices = append(devices, d)
	}
	return devices, nil
}

func decodeDevice(entry *layout.LimitsDevice) (Device, error) {
	name, ok := formatUUID(entry.UUID, entry.Kind)
	if !ok {
		return Device{}, fmt.Errorf("a GPU of kind %d", entry.Kind)
	}
	d := Device{
		UUID: name, MemoryBytes: entry.MemoryBytes, ComputePPM: entry.ComputePPM, ContextBytes: entry.ContextBytes,
		MaximumPPM: maximum(entry), MPS: entry.Flags&layout.FlagMPS != 0,
	}
	if d.MPS {
		d.Multiprocessors = int(entry.Multiprocessors)
	}
	return d, d.check()
}

// maximum returns a device's MaximumPPM. Pages of releases without the field may set FlagShare for
// a container without a limit.
func maximum(entry *layout.LimitsDevice) uint32 {
	switch {
	case entry.Flags&layout.FlagShare == 0 || entry.ComputePPM == NoComputeLimit:
		return 0
	case entry.MaximumPPM == 0:
		return NoComputeLimit
	default:
		return entry.MaximumPPM
	}
}

// checksum returns the FNV-1a hash of the checked part of a raw copy.
func checksum(raw []byte) uint64 {
	h := fnv.New64a()
	h.Write(raw[:checkedSize])
	return h.Sum64()
}

func newLimitsPage(devices []Device) ([]byte, error) {
	active, err := encodeCopy(0, devices)
	if err != nil {
		return nil, err
	}
	page := encode(&layout.LimitsPage{Magic: layout.LimitsMagic, Version: layout.Version, Size: uint32(limitsSize)})
	copy(page[copiesOffset:], active)
	return page, nil
}

func newUsageHeader(deviceCount int) []byte {
	return encode(&layout.UsageHeader{
		Magic: layout.UsageMagic, Version: layout.Version, SlotCount: layout.MaxSlots,
		Size: uint64(usageSize), DeviceCount: uint32(deviceCount),
	})
}

// checkHead checks the first bytes and the size of a limits page or usage page.
func checkHead(head []byte, magic uint64, size, want int64) error {
	if len(head) < 12 || binary.LittleEndian.Uint64(head) != magic {
		return ErrForeign
	}
	if v := binary.LittleEndian.Uint32(head[8:]); v != layout.Version {
		return fmt.Errorf("%w: %d, this program reads %d", ErrVersion, v, layout.Version)
	}
	if size != want {
		return fmt.Errorf("%w: %d bytes, want %d", ErrTruncated, size, want)
	}
	return nil
}

// encode converts a structure of package layout to bytes; decode converts bytes to a structure. The
// structures have no padding, so no conversion can fail.
func encode(v any) []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func decode(raw []byte, v any) {
	if _, err := binary.Decode(raw, binary.LittleEndian, v); err != nil {
		panic(err)
	}
}
