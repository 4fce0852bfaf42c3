// SPDX-License-Identifier: Apache-2.0

// Package layout declares the memory layout of the container's two pages once, for Go and for C.
// "go generate ./pkg/limits" generates interposer/src/pages/pages_gen.h from this file, and tests
// compare the two files.
//
// Every field has a fixed size. Every structure is a multiple of 8 bytes and has no implicit
// padding. Integers are little-endian. Go and C access fields that another process may change
// concurrently only with sequentially consistent atomics.
package layout

const (
	// LimitsMagic starts a limits page: "NVGPULIM" read as little-endian.
	LimitsMagic = 0x4d494c555047564e
	// UsageMagic starts a usage page: "NVGPUUSE" read as little-endian.
	UsageMagic = 0x455355555047564e
	// Version is the version of both layouts. A reader refuses any other version.
	Version = 1
	// MaxDevices bounds the GPUs of one container.
	MaxDevices = 16
	// MaxSlots bounds the processes of one container that use CUDA at a time.
	MaxSlots = 1024
	// PPM is a whole GPU in parts per million. As a compute limit, PPM means no limit.
	PPM = 1000000
	// KindGPU marks a whole GPU's UUID.
	KindGPU = 1
	// KindMIG marks a MIG device's UUID.
	KindMIG = 2
	// FlagShare marks a container that may exceed its part of the GPU time by leases on time that
	// other containers do not use. The container's MaximumPPM is above its ComputePPM.
	FlagShare = 1
	// FlagMPS marks a GPU that containers share through the Multi-Process Service. ComputePPM is
	// the part of the GPU that the MPS server lets the container fill; GPU time has no limit.
	FlagMPS = 2
	// LeasePPMBits is the width of the part of the GPU's time in a lease. The higher bits hold
	// the lease's end, in units of 1 << LeaseUnitBits ns of CLOCK_MONOTONIC.
	LeasePPMBits = 20
	// LeaseUnitBits is the number of low bits that a lease's end omits.
	LeaseUnitBits = 16
	// RefusalSizeBits is the width of the size in a packed refusal. The higher bits hold the
	// way of allocating.
	RefusalSizeBits = 56
	// ObservedLookBits is the width of the observation's number in an observed value. The
	// higher bits hold the bytes, as a multiple of 1 << ObservedLookBits.
	ObservedLookBits = 12
	// UnknownContextBytes is the charge for a context whose size is not on the limits page.
	// UnknownContextBytes exceeds the size of every known context.
	UnknownContextBytes = 768 << 20
)

// These constants are the ways of allocating device memory. A refusal records the way.
const (
	WayNone    = 0
	WayContext = 1
	WayAlloc   = 2
	WayPitch   = 3
	WayManaged = 4
	WayArray   = 5
	WayMipmap  = 6
	WayAsync   = 7
	WayPool    = 8
	WayVMM     = 9
	WayGraph   = 10
	WayImport  = 11
	WayModule  = 12
	// WayCount is the number of ways, including WayNone.
	WayCount = 13
)

// LimitsDevice is the limit on one GPU.
type LimitsDevice struct {
	// UUID is the device's 16-byte UUID as the driver reports it.
	UUID [16]uint8
	// Kind is KindGPU or KindMIG.
	Kind uint32
	// ComputePPM is the part of the GPU's time in parts per million. The value PPM means no limit.
	ComputePPM uint32
	// MemoryBytes is the limit on device memory, including contexts.
	MemoryBytes uint64
	// ContextBytes is the expected size of one context; 0 means unknown.
	ContextBytes uint64
	// Flags is FlagShare, FlagMPS or 0.
	Flags uint32
	// Multiprocessors is the GPU's number of multiprocessors, if FlagMPS is set; 0 means unknown. A
	// client of MPS with a limit sees fewer multiprocessors.
	Multiprocessors uint32
	// MaximumPPM, with FlagShare, is the most of the GPU's time that the container may use with
	// leases. 0 stands for PPM, since releases without the field write 0.
	MaximumPPM uint32
	// Reserved is 0.
	Reserved [3]uint32
}

// LimitsCopy is one complete set of limits. A page has two copies. A writer fills the inactive copy
// and activates it by one store of the generation. A writer that dies before the store does not
// change the active copy.
type LimitsCopy struct {
	// Generation is the page's generation to which the copy belongs.
	Generation uint64
	// DeviceCount is the number of valid entries of Devices.
	DeviceCount uint32
	// Reserved is 0.
	Reserved uint32
	Devices  [MaxDevices]LimitsDevice
	// Checksum is the FNV-1a hash (64 bits) of all preceding bytes of the copy.
	Checksum uint64
}

// LimitsPage is the file "limits", which is read-only for the container.
type LimitsPage struct {
	Magic   uint64
	Version uint32
	// Size is the size of the page in bytes.
	Size uint32
	// Generation counts the changes; its lowest bit selects the active copy.
	Generation uint64
	Reserved   [5]uint64
	Copies     [2]LimitsCopy
	// Observed is, per GPU, the memory that the agent last saw the container hold. The value
	// is 0 if the memory did not exceed the claim on the usage page. The low bits hold the
	// observation's number, which distinguishes observations of equal size. Observed is not
	// part of the copies: one store sets it.
	Observed [MaxDevices]uint64
	// Leases are, per device, the part of the GPU's time that a container with FlagShare may use
	// for a few milliseconds beyond its limit. Each lease is one word, written at any time; 0 means
	// no lease.
	Leases [MaxDevices]uint64
	// Others is, per device, the GPU time charged to all other containers of that GPU, in ns
	// since an arbitrary start. The agent counts the time, and Others wraps around.
	Others [MaxDevices]uint64
	// OthersLooks are, per device, the part of the GPU's time that the other containers may
	// have, in parts per million. The higher bits hold the time of the last update of Others.
	// Each entry is one word, packed as a lease; 0 if the agent does not count.
	OthersLooks [MaxDevices]uint64
	// Tail pads the page to 4096 bytes.
	Tail [178]uint64
}

// SlotDevice is the usage of one process on one GPU.
type SlotDevice struct {
	// Used is the granted bytes, including bytes that the process is allocating from the driver
	// now.
	Used uint64
	// Pending is the bytes requested and not yet granted.
	Pending uint64
	// Peak is the largest Used so far.
	Peak uint64
	// ContextBytes is the part of Used that contexts take.
	ContextBytes uint64
	// GPUTimeNs is the GPU time used, in ns.
	GPUTimeNs uint64
	// WaitNs is the time for which the interposer delayed launches, in ns.
	WaitNs uint64
	// Launches counts the launches on the GPU.
	Launches uint64
	// Refusals counts refused allocations.
	Refusals uint64
	// LastRefusal is the last refusal: way << RefusalSizeBits | size in bytes.
	LastRefusal uint64
	// UnmeasuredNs is the time since which the process has had running work of unknown duration, in
	// ns of CLOCK_MONOTONIC; 0 means no work. If the process dies, the interposer charges the
	// container from UnmeasuredNs on.
	UnmeasuredNs uint64
	Reserved     [6]uint64
}

// Slot is the usage of one process. The process owns the slot as long as it holds an OFD lock
// on the slot's bytes of the file.
type Slot struct {
	// PID is the process id in the container's pid namespace, a claim for display only.
	PID uint32
	// Reserved0 is 0.
	Reserved0 uint32
	// AttachedNs is the time at which the process attached, in ns of CLOCK_BOOTTIME.
	AttachedNs uint64
	// Name is the process's short name, as in /proc/<pid>/comm.
	Name     [16]uint8
	Reserved [4]uint64
	Devices  [MaxDevices]SlotDevice
}

// ContainerDevice is the usage of the whole container on one GPU.
type ContainerDevice struct {
	// Refusals counts the refused allocations of all processes, including dead processes.
	Refusals uint64
	// LastRefusal has the format of SlotDevice.LastRefusal.
	LastRefusal uint64
	// RetiredGPUTimeNs, RetiredWaitNs and RetiredLaunches are the sums over the processes of
	// reclaimed slots.
	RetiredGPUTimeNs uint64
	RetiredWaitNs    uint64
	RetiredLaunches  uint64
	// BucketNs is the container's balance of GPU time, in ns. BucketNs is in two's complement,
	// since the balance may be negative.
	BucketNs uint64
	// BucketFilledNs is the time of the bucket's last refill, in ns of CLOCK_MONOTONIC.
	BucketFilledNs uint64
	// SpentNs is all GPU time ever taken from the bucket, in ns, minus refunds.
	SpentNs uint64
	// Launches counts the launches on the GPU, if the container has several GPUs.
	Launches uint64
	// PhaseLaunches is the value of Launches when the current phase of the container's GPUs
	// opened. PhaseGoal is PhaseLaunches plus the launches still due from the previous phase.
	PhaseLaunches uint64
	PhaseGoal     uint64
	// Peak is the most memory granted to all processes at the same time. The memory of a
	// killed process counts until another process needs it or takes its slot.
	Peak uint64
	// ClippedNs is unused. Interposers of the previous release write ClippedNs.
	ClippedNs uint64
	// UnmeasuredNs is the time up to which the container has paid for unmeasured work of dead
	// processes, in ns of CLOCK_MONOTONIC.
	UnmeasuredNs uint64
	Reserved     [2]uint64
}

// WayRefusals counts the refused allocations of one GPU by the way of allocating.
type WayRefusals struct {
	Counts [WayCount]uint64
}

// Distrust holds the errors that the container's processes detected in their own measurements
// of one GPU. Interposers older than Distrust write 0.
type Distrust struct {
	// Uncharged counts the claims on other containers' time that lapsed because the other
	// containers were charged less. Uncharged and Aliased wrap around.
	Uncharged uint32
	// Aliased counts the measurements whose probes completed only with the end of the measured
	// work.
	Aliased uint32
	// DriftPPB is the rate by which the GPU's clock is faster than the host's, in parts per
	// billion, two's complement; 0 means unknown.
	DriftPPB uint32
	// SliceNs is the GPU time slice of a process of the container beside other processes, in ns; 0
	// means unknown.
	SliceNs uint32
}

// UsageHeader is the first 4096 bytes of the file "usage".
type UsageHeader struct {
	Magic   uint64
	Version uint32
	// SlotCount is MaxSlots.
	SlotCount uint32
	// Size is the size of the file in bytes.
	Size uint64
	// HighWater is one more than the highest slot ever taken. HighWater bounds scans, and only
	// grows.
	HighWater uint32
	// DeviceCount is the number of used devices, in the limits page's order.
	DeviceCount uint32
	// PhaseOpen is 1 while the container may launch work on all of its GPUs. PhaseOpen becomes 0
	// when one GPU's balance is exhausted, and 1 again when all GPUs have a balance.
	PhaseOpen uint64
	// PhaseReach is the largest number of launches on any of the GPUs in the previous phase. Each
	// other GPU may reach the same number after the end of the phase.
	PhaseReach uint64
	// PhaseInStep is 1 if all GPUs had about as many launches in the previous phase.
	PhaseInStep uint64
	Reserved    [1]uint64
	Devices     [MaxDevices]ContainerDevice
	// Refusals counts ContainerDevice.Refusals by way. Interposers older than the field write
	// 0.
	Refusals [MaxDevices]WayRefusals
	// Distrust is, per device, how reliable the interposer's probes are.
	Distrust [MaxDevices]Distrust
	// Tail pads the header to 4096 bytes.
	Tail [8]uint64
}

// UsagePage is the file "usage", which every process of the container writes.
type UsagePage struct {
	Header UsageHeader
	Slots  [MaxSlots]Slot
}
