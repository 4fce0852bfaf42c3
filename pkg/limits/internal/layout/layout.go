// Package layout declares the memory layout of the container's two pages,
// once, for Go and for C: interposer/src/pages_gen.h is generated from this
// file (go generate ./pkg/limits), and tests hold the two together.
//
// Every field has a fixed size, every structure is a multiple of 8 bytes and
// has no implicit padding, and integers are little-endian. Fields that both
// sides change while the other looks are accessed with sequentially consistent
// atomics only.
package layout

const (
	// LimitsMagic starts a limits page: "NVGPULIM" read as little-endian.
	LimitsMagic = 0x4d494c555047564e
	// UsageMagic starts a usage page: "NVGPUUSE" read as little-endian.
	UsageMagic = 0x455355555047564e
	// Version is the version of both layouts. A reader refuses any other.
	Version = 1
	// MaxDevices bounds the GPUs of one container.
	MaxDevices = 16
	// MaxSlots bounds the processes of one container that use CUDA at a time.
	MaxSlots = 1024
	// PPM is a whole GPU in parts per million: no compute limit.
	PPM = 1000000
	// KindGPU marks a whole GPU's UUID.
	KindGPU = 1
	// KindMIG marks a MIG device's UUID.
	KindMIG = 2
	// FlagShare marks a container that may have more than its part of the time, by
	// leases on what others leave idle: its MaximumPPM is above its ComputePPM.
	FlagShare = 1
	// FlagMPS marks a GPU that is shared through the Multi-Process Service: the
	// limit is the part of the GPU that its server lets the container fill, and
	// no limit on time.
	FlagMPS = 2
	// LeasePPMBits is the width of a lease's part of the GPU's time; the time
	// at which it ends stands above it, in units of 1 << LeaseUnitBits ns of
	// CLOCK_MONOTONIC.
	LeasePPMBits = 20
	// LeaseUnitBits is the width of what is left out of a lease's end.
	LeaseUnitBits = 16
	// RefusalSizeBits is the width of the size in a packed refusal; the way
	// of allocating stands above it.
	RefusalSizeBits = 56
	// ObservedLookBits is the width of the number of the look in what was
	// observed; the bytes stand above it, as a multiple of 1 << its value.
	ObservedLookBits = 12
	// UnknownContextBytes is what a context is charged where the limits page has no
	// size of it: more than any known context takes.
	UnknownContextBytes = 768 << 20
)

// The ways of acquiring device memory, as a refusal names them.
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
	// WayCount is how many there are, WayNone included.
	WayCount = 13
)

// LimitsDevice is the limit on one GPU.
type LimitsDevice struct {
	// UUID is the device's 16 bytes as the driver gives them.
	UUID [16]uint8
	// Kind is KindGPU or KindMIG.
	Kind uint32
	// ComputePPM is the part of the GPU's time; PPM is no limit.
	ComputePPM uint32
	// MemoryBytes is the limit on device memory, contexts included.
	MemoryBytes uint64
	// ContextBytes is what one context is expected to take; 0 is unknown.
	ContextBytes uint64
	// Flags is FlagShare, FlagMPS or 0.
	Flags uint32
	// Multiprocessors is how many the GPU has, where FlagMPS is set; 0 is
	// unknown. A client of MPS with a limit sees fewer.
	Multiprocessors uint32
	// MaximumPPM is, with FlagShare, the most of the GPU's time that leases may give; 0,
	// as pages had it before there was a maximum, is PPM.
	MaximumPPM uint32
	// Reserved is 0.
	Reserved [3]uint32
}

// LimitsCopy is one complete set of limits. A page has two: a writer fills the
// inactive one and makes it active by one store of the generation, so that a
// writer that dies half-way leaves the active one whole.
type LimitsCopy struct {
	// Generation is the page's generation that this copy belongs to.
	Generation uint64
	// DeviceCount is how many of Devices are valid.
	DeviceCount uint32
	// Reserved is 0.
	Reserved uint32
	Devices  [MaxDevices]LimitsDevice
	// Checksum is FNV-1a (64 bits) over all bytes of the copy before it.
	Checksum uint64
}

// LimitsPage is the file "limits", which the container can only read.
type LimitsPage struct {
	Magic   uint64
	Version uint32
	// Size is the size of the page in bytes.
	Size uint32
	// Generation counts the changes; its lowest bit names the active copy.
	Generation uint64
	Reserved   [5]uint64
	Copies     [2]LimitsCopy
	// Observed is, per GPU, what the agent last saw the container hold, if
	// that was more than its usage page owned up to, else 0; together with
	// the number of the look, which tells two looks that found the same
	// apart. It is no part of the copies: one store sets it.
	Observed [MaxDevices]uint64
	// Leases are, by device, what part of the GPU's time a container with
	// FlagShare may use for a few milliseconds beyond its limit: one word
	// each, written at any time; 0 for none.
	Leases [MaxDevices]uint64
	// Others is, by device, what GPU time all other containers of that GPU were charged,
	// in ns since any time. It is counted by the agent and wraps around.
	Others [MaxDevices]uint64
	// OthersLooks are, by device, what part of the GPU's time the other containers may
	// have, in parts per million, and when Others was last brought up to date: one word
	// each, as of a lease; 0 if nobody counts.
	OthersLooks [MaxDevices]uint64
	// Tail fills the page up to 4096 bytes.
	Tail [178]uint64
}

// SlotDevice is what one process holds and did on one GPU.
type SlotDevice struct {
	// Used is the bytes granted: those that the process holds, and those that
	// it is getting from the driver just now.
	Used uint64
	// Pending is the bytes asked for and not yet granted.
	Pending uint64
	// Peak is the largest Used so far.
	Peak uint64
	// ContextBytes is the part of Used that contexts take.
	ContextBytes uint64
	// GPUTimeNs is the GPU time had, in ns.
	GPUTimeNs uint64
	// WaitNs is the time that launches were held back, in ns.
	WaitNs uint64
	// Launches counts the work given to the GPU.
	Launches uint64
	// Refusals counts refused allocations.
	Refusals uint64
	// LastRefusal is the last one: way << RefusalSizeBits | size in bytes.
	LastRefusal uint64
	Reserved    [7]uint64
}

// Slot is one process. It is that process's alone as long as it holds an OFD
// lock on the slot's bytes of the file.
type Slot struct {
	// PID is the process as itself sees it; a claim, good for display alone.
	PID uint32
	// Reserved0 is 0.
	Reserved0 uint32
	// AttachedNs is the time of attaching, in ns of CLOCK_BOOTTIME.
	AttachedNs uint64
	// Name is the process's short name, as in /proc/<pid>/comm.
	Name     [16]uint8
	Reserved [4]uint64
	Devices  [MaxDevices]SlotDevice
}

// ContainerDevice is what the container as a whole did on one GPU.
type ContainerDevice struct {
	// Refusals counts refused allocations of all processes, dead ones too.
	Refusals uint64
	// LastRefusal is packed as in SlotDevice.
	LastRefusal uint64
	// RetiredGPUTimeNs, RetiredWaitNs and RetiredLaunches are the sums over
	// processes whose slots were reclaimed.
	RetiredGPUTimeNs uint64
	RetiredWaitNs    uint64
	RetiredLaunches  uint64
	// BucketNs is the container's allowance of GPU time, in ns, and may be in
	// debt; two's complement.
	BucketNs uint64
	// BucketFilledNs is when the bucket was last filled, in ns of
	// CLOCK_MONOTONIC.
	BucketFilledNs uint64
	// SpentNs is all GPU time that was ever taken from the bucket, in ns, less
	// what was given back.
	SpentNs uint64
	// Launches counts the work given to the GPU, where the container has
	// several.
	Launches uint64
	// PhaseLaunches is what Launches was when the container's GPUs were last
	// opened together, and PhaseGoal that and what was still to go of the phase
	// before.
	PhaseLaunches uint64
	PhaseGoal     uint64
	// Peak is the most that all processes together were granted at a time. What
	// a killed process had counts until somebody needs it or takes its slot.
	Peak uint64
	// ClippedNs is what was earned and the bucket could not hold, in ns of GPU time, less
	// what work that was charged afterwards had back.
	ClippedNs uint64
	Reserved  [3]uint64
}

// WayRefusals counts the refused allocations of one GPU by the way of asking.
type WayRefusals struct {
	Counts [WayCount]uint64
}

// Distrust is what the container's processes found out about their own measurements of
// one GPU. Interposers before it leave it 0.
type Distrust struct {
	// Uncharged counts claims on others' time that lapsed, as the others were not charged
	// for as much. It wraps around, as Aliased does.
	Uncharged uint32
	// Aliased counts measurements whose probes came back with the end of the work that they
	// were to tell of.
	Aliased uint32
	// DriftPPB is by how much the GPU's clock is faster than the host's, in parts per
	// billion, two's complement; 0 is unknown.
	DriftPPB uint32
	// SliceNs is how long a process of the container has the GPU at a time beside others, in
	// ns; 0 is unknown.
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
	// HighWater is one more than the highest slot ever taken: a bound for
	// scans. It only grows.
	HighWater uint32
	// DeviceCount is how many devices are used, in the limits page's order.
	DeviceCount uint32
	// PhaseOpen is 1 while all GPUs of the container have allowance, and work
	// may go to them; 0 from when one has none until all have some again.
	PhaseOpen uint64
	// PhaseReach is the most launches that any of them had in the phase that is
	// over: the others may have as many, too.
	PhaseReach uint64
	// PhaseInStep is 1 if they all had about as many in the last one.
	PhaseInStep uint64
	Reserved    [1]uint64
	Devices     [MaxDevices]ContainerDevice
	// Refusals tell ContainerDevice.Refusals apart; interposers before them
	// did not.
	Refusals [MaxDevices]WayRefusals
	// Distrust is, by device, what probes are worth.
	Distrust [MaxDevices]Distrust
	// Tail fills the header up to 4096 bytes.
	Tail [8]uint64
}

// UsagePage is the file "usage", which every process of the container writes.
type UsagePage struct {
	Header UsageHeader
	Slots  [MaxSlots]Slot
}
