// SPDX-License-Identifier: Apache-2.0
// Code generated from pkg/limits/internal/layout/layout.go by `go generate ./pkg/limits`. DO NOT EDIT.
#ifndef VG_PAGES_GEN_H
#define VG_PAGES_GEN_H

#include <stddef.h>
#include <stdint.h>
// LimitsMagic starts a limits page: "NVGPULIM" read as little-endian.
#define VG_LIMITS_MAGIC UINT64_C(0x4d494c555047564e)
// UsageMagic starts a usage page: "NVGPUUSE" read as little-endian.
#define VG_USAGE_MAGIC UINT64_C(0x455355555047564e)
// Version is the version of both layouts. A reader refuses any other.
#define VG_VERSION 1u
// MaxDevices bounds the GPUs of one container.
#define VG_MAX_DEVICES 16u
// MaxSlots bounds the processes of one container that use CUDA at a time.
#define VG_MAX_SLOTS 1024u
// PPM is a whole GPU in parts per million: no compute limit.
#define VG_PPM 1000000u
// KindGPU marks a whole GPU's UUID.
#define VG_KIND_GPU 1u
// KindMIG marks a MIG device's UUID.
#define VG_KIND_MIG 2u
// FlagShare marks a container that may have more than its part of the time, by
// leases on what others leave idle: its MaximumPPM is above its ComputePPM.
#define VG_FLAG_SHARE 1u
// FlagMPS marks a GPU that is shared through the Multi-Process Service: the
// limit is the part of the GPU that its server lets the container fill, and
// no limit on time.
#define VG_FLAG_MPS 2u
// LeasePPMBits is the width of a lease's part of the GPU's time; the time
// at which it ends stands above it, in units of 1 << LeaseUnitBits ns of
// CLOCK_MONOTONIC.
#define VG_LEASE_PPM_BITS 20u
// LeaseUnitBits is the width of what is left out of a lease's end.
#define VG_LEASE_UNIT_BITS 16u
// RefusalSizeBits is the width of the size in a packed refusal; the way
// of allocating stands above it.
#define VG_REFUSAL_SIZE_BITS 56u
// ObservedLookBits is the width of the number of the look in what was
// observed; the bytes stand above it, as a multiple of 1 << its value.
#define VG_OBSERVED_LOOK_BITS 12u
// UnknownContextBytes is what a context is charged where the limits page has no
// size of it: more than any known context takes.
#define VG_UNKNOWN_CONTEXT_BYTES 805306368u
#define VG_WAY_NONE 0u
#define VG_WAY_CONTEXT 1u
#define VG_WAY_ALLOC 2u
#define VG_WAY_PITCH 3u
#define VG_WAY_MANAGED 4u
#define VG_WAY_ARRAY 5u
#define VG_WAY_MIPMAP 6u
#define VG_WAY_ASYNC 7u
#define VG_WAY_POOL 8u
#define VG_WAY_VMM 9u
#define VG_WAY_GRAPH 10u
#define VG_WAY_IMPORT 11u
#define VG_WAY_MODULE 12u
// WayCount is how many there are, WayNone included.
#define VG_WAY_COUNT 13u

// LimitsDevice is the limit on one GPU.
struct vg_limits_device {
	// UUID is the device's 16 bytes as the driver gives them.
	uint8_t uuid[16];
	// Kind is KindGPU or KindMIG.
	uint32_t kind;
	// ComputePPM is the part of the GPU's time; PPM is no limit.
	uint32_t compute_ppm;
	// MemoryBytes is the limit on device memory, contexts included.
	uint64_t memory_bytes;
	// ContextBytes is what one context is expected to take; 0 is unknown.
	uint64_t context_bytes;
	// Flags is FlagShare, FlagMPS or 0.
	uint32_t flags;
	// Multiprocessors is how many the GPU has, where FlagMPS is set; 0 is
	// unknown. A client of MPS with a limit sees fewer.
	uint32_t multiprocessors;
	// MaximumPPM is, with FlagShare, the most of the GPU's time that leases may give; 0,
	// as pages had it before there was a maximum, is PPM.
	uint32_t maximum_ppm;
	// Reserved is 0.
	uint32_t reserved[3];
};
_Static_assert(sizeof(struct vg_limits_device) == 64, "size of vg_limits_device");
_Static_assert(offsetof(struct vg_limits_device, uuid) == 0, "offset of vg_limits_device.uuid");
_Static_assert(offsetof(struct vg_limits_device, kind) == 16, "offset of vg_limits_device.kind");
_Static_assert(offsetof(struct vg_limits_device, compute_ppm) == 20, "offset of vg_limits_device.compute_ppm");
_Static_assert(offsetof(struct vg_limits_device, memory_bytes) == 24, "offset of vg_limits_device.memory_bytes");
_Static_assert(offsetof(struct vg_limits_device, context_bytes) == 32, "offset of vg_limits_device.context_bytes");
_Static_assert(offsetof(struct vg_limits_device, flags) == 40, "offset of vg_limits_device.flags");
_Static_assert(offsetof(struct vg_limits_device, multiprocessors) == 44, "offset of vg_limits_device.multiprocessors");
_Static_assert(offsetof(struct vg_limits_device, maximum_ppm) == 48, "offset of vg_limits_device.maximum_ppm");
_Static_assert(offsetof(struct vg_limits_device, reserved) == 52, "offset of vg_limits_device.reserved");

// LimitsCopy is one complete set of limits. A page has two: a writer fills the
// inactive one and makes it active by one store of the generation, so that a
// writer that dies half-way leaves the active one whole.
struct vg_limits_copy {
	// Generation is the page's generation that this copy belongs to.
	uint64_t generation;
	// DeviceCount is how many of Devices are valid.
	uint32_t device_count;
	// Reserved is 0.
	uint32_t reserved;
	struct vg_limits_device devices[16];
	// Checksum is FNV-1a (64 bits) over all bytes of the copy before it.
	uint64_t checksum;
};
_Static_assert(sizeof(struct vg_limits_copy) == 1048, "size of vg_limits_copy");
_Static_assert(offsetof(struct vg_limits_copy, generation) == 0, "offset of vg_limits_copy.generation");
_Static_assert(offsetof(struct vg_limits_copy, device_count) == 8, "offset of vg_limits_copy.device_count");
_Static_assert(offsetof(struct vg_limits_copy, reserved) == 12, "offset of vg_limits_copy.reserved");
_Static_assert(offsetof(struct vg_limits_copy, devices) == 16, "offset of vg_limits_copy.devices");
_Static_assert(offsetof(struct vg_limits_copy, checksum) == 1040, "offset of vg_limits_copy.checksum");

// LimitsPage is the file "limits", which the container can only read.
struct vg_limits_page {
	uint64_t magic;
	uint32_t version;
	// Size is the size of the page in bytes.
	uint32_t size;
	// Generation counts the changes; its lowest bit names the active copy.
	uint64_t generation;
	uint64_t reserved[5];
	struct vg_limits_copy copies[2];
	// Observed is, per GPU, what the agent last saw the container hold, if
	// that was more than its usage page owned up to, else 0; together with
	// the number of the look, which tells two looks that found the same
	// apart. It is no part of the copies: one store sets it.
	uint64_t observed[16];
	// Leases are, by device, what part of the GPU's time a container with
	// FlagShare may use for a few milliseconds beyond its limit: one word
	// each, written at any time; 0 for none.
	uint64_t leases[16];
	// Others is, by device, what GPU time all other containers of that GPU were charged,
	// in ns since any time. It is counted by the agent and wraps around.
	uint64_t others[16];
	// OthersLooks are, by device, what part of the GPU's time the other containers may
	// have, in parts per million, and when Others was last brought up to date: one word
	// each, as of a lease; 0 if nobody counts.
	uint64_t others_looks[16];
	// Tail fills the page up to 4096 bytes.
	uint64_t tail[178];
};
_Static_assert(sizeof(struct vg_limits_page) == 4096, "size of vg_limits_page");
_Static_assert(offsetof(struct vg_limits_page, magic) == 0, "offset of vg_limits_page.magic");
_Static_assert(offsetof(struct vg_limits_page, version) == 8, "offset of vg_limits_page.version");
_Static_assert(offsetof(struct vg_limits_page, size) == 12, "offset of vg_limits_page.size");
_Static_assert(offsetof(struct vg_limits_page, generation) == 16, "offset of vg_limits_page.generation");
_Static_assert(offsetof(struct vg_limits_page, reserved) == 24, "offset of vg_limits_page.reserved");
_Static_assert(offsetof(struct vg_limits_page, copies) == 64, "offset of vg_limits_page.copies");
_Static_assert(offsetof(struct vg_limits_page, observed) == 2160, "offset of vg_limits_page.observed");
_Static_assert(offsetof(struct vg_limits_page, leases) == 2288, "offset of vg_limits_page.leases");
_Static_assert(offsetof(struct vg_limits_page, others) == 2416, "offset of vg_limits_page.others");
_Static_assert(offsetof(struct vg_limits_page, others_looks) == 2544, "offset of vg_limits_page.others_looks");
_Static_assert(offsetof(struct vg_limits_page, tail) == 2672, "offset of vg_limits_page.tail");

// SlotDevice is what one process holds and did on one GPU.
struct vg_slot_device {
	// Used is the bytes granted: those that the process holds, and those that
	// it is getting from the driver just now.
	uint64_t used;
	// Pending is the bytes asked for and not yet granted.
	uint64_t pending;
	// Peak is the largest Used so far.
	uint64_t peak;
	// ContextBytes is the part of Used that contexts take.
	uint64_t context_bytes;
	// GPUTimeNs is the GPU time had, in ns.
	uint64_t gpu_time_ns;
	// WaitNs is the time that launches were held back, in ns.
	uint64_t wait_ns;
	// Launches counts the work given to the GPU.
	uint64_t launches;
	// Refusals counts refused allocations.
	uint64_t refusals;
	// LastRefusal is the last one: way << RefusalSizeBits | size in bytes.
	uint64_t last_refusal;
	uint64_t reserved[7];
};
_Static_assert(sizeof(struct vg_slot_device) == 128, "size of vg_slot_device");
_Static_assert(offsetof(struct vg_slot_device, used) == 0, "offset of vg_slot_device.used");
_Static_assert(offsetof(struct vg_slot_device, pending) == 8, "offset of vg_slot_device.pending");
_Static_assert(offsetof(struct vg_slot_device, peak) == 16, "offset of vg_slot_device.peak");
_Static_assert(offsetof(struct vg_slot_device, context_bytes) == 24, "offset of vg_slot_device.context_bytes");
_Static_assert(offsetof(struct vg_slot_device, gpu_time_ns) == 32, "offset of vg_slot_device.gpu_time_ns");
_Static_assert(offsetof(struct vg_slot_device, wait_ns) == 40, "offset of vg_slot_device.wait_ns");
_Static_assert(offsetof(struct vg_slot_device, launches) == 48, "offset of vg_slot_device.launches");
_Static_assert(offsetof(struct vg_slot_device, refusals) == 56, "offset of vg_slot_device.refusals");
_Static_assert(offsetof(struct vg_slot_device, last_refusal) == 64, "offset of vg_slot_device.last_refusal");
_Static_assert(offsetof(struct vg_slot_device, reserved) == 72, "offset of vg_slot_device.reserved");

// Slot is one process. It is that process's alone as long as it holds an OFD
// lock on the slot's bytes of the file.
struct vg_slot {
	// PID is the process as itself sees it; a claim, good for display alone.
	uint32_t pid;
	// Reserved0 is 0.
	uint32_t reserved0;
	// AttachedNs is the time of attaching, in ns of CLOCK_BOOTTIME.
	uint64_t attached_ns;
	// Name is the process's short name, as in /proc/<pid>/comm.
	uint8_t name[16];
	uint64_t reserved[4];
	struct vg_slot_device devices[16];
};
_Static_assert(sizeof(struct vg_slot) == 2112, "size of vg_slot");
_Static_assert(offsetof(struct vg_slot, pid) == 0, "offset of vg_slot.pid");
_Static_assert(offsetof(struct vg_slot, reserved0) == 4, "offset of vg_slot.reserved0");
_Static_assert(offsetof(struct vg_slot, attached_ns) == 8, "offset of vg_slot.attached_ns");
_Static_assert(offsetof(struct vg_slot, name) == 16, "offset of vg_slot.name");
_Static_assert(offsetof(struct vg_slot, reserved) == 32, "offset of vg_slot.reserved");
_Static_assert(offsetof(struct vg_slot, devices) == 64, "offset of vg_slot.devices");

// ContainerDevice is what the container as a whole did on one GPU.
struct vg_container_device {
	// Refusals counts refused allocations of all processes, dead ones too.
	uint64_t refusals;
	// LastRefusal is packed as in SlotDevice.
	uint64_t last_refusal;
	// RetiredGPUTimeNs, RetiredWaitNs and RetiredLaunches are the sums over
	// processes whose slots were reclaimed.
	uint64_t retired_gpu_time_ns;
	uint64_t retired_wait_ns;
	uint64_t retired_launches;
	// BucketNs is the container's allowance of GPU time, in ns, and may be in
	// debt; two's complement.
	uint64_t bucket_ns;
	// BucketFilledNs is when the bucket was last filled, in ns of
	// CLOCK_MONOTONIC.
	uint64_t bucket_filled_ns;
	// SpentNs is all GPU time that was ever taken from the bucket, in ns, less
	// what was given back.
	uint64_t spent_ns;
	// Launches counts the work given to the GPU, where the container has
	// several.
	uint64_t launches;
	// PhaseLaunches is what Launches was when the container's GPUs were last
	// opened together, and PhaseGoal that and what was still to go of the phase
	// before.
	uint64_t phase_launches;
	uint64_t phase_goal;
	// Peak is the most that all processes together were granted at a time. What
	// a killed process had counts until somebody needs it or takes its slot.
	uint64_t peak;
	// ClippedNs is what was earned and the bucket could not hold, in ns of GPU time, less
	// what work that was charged afterwards had back.
	uint64_t clipped_ns;
	uint64_t reserved[3];
};
_Static_assert(sizeof(struct vg_container_device) == 128, "size of vg_container_device");
_Static_assert(offsetof(struct vg_container_device, refusals) == 0, "offset of vg_container_device.refusals");
_Static_assert(offsetof(struct vg_container_device, last_refusal) == 8, "offset of vg_container_device.last_refusal");
_Static_assert(offsetof(struct vg_container_device, retired_gpu_time_ns) == 16, "offset of vg_container_device.retired_gpu_time_ns");
_Static_assert(offsetof(struct vg_container_device, retired_wait_ns) == 24, "offset of vg_container_device.retired_wait_ns");
_Static_assert(offsetof(struct vg_container_device, retired_launches) == 32, "offset of vg_container_device.retired_launches");
_Static_assert(offsetof(struct vg_container_device, bucket_ns) == 40, "offset of vg_container_device.bucket_ns");
_Static_assert(offsetof(struct vg_container_device, bucket_filled_ns) == 48, "offset of vg_container_device.bucket_filled_ns");
_Static_assert(offsetof(struct vg_container_device, spent_ns) == 56, "offset of vg_container_device.spent_ns");
_Static_assert(offsetof(struct vg_container_device, launches) == 64, "offset of vg_container_device.launches");
_Static_assert(offsetof(struct vg_container_device, phase_launches) == 72, "offset of vg_container_device.phase_launches");
_Static_assert(offsetof(struct vg_container_device, phase_goal) == 80, "offset of vg_container_device.phase_goal");
_Static_assert(offsetof(struct vg_container_device, peak) == 88, "offset of vg_container_device.peak");
_Static_assert(offsetof(struct vg_container_device, clipped_ns) == 96, "offset of vg_container_device.clipped_ns");
_Static_assert(offsetof(struct vg_container_device, reserved) == 104, "offset of vg_container_device.reserved");

// WayRefusals counts the refused allocations of one GPU by the way of asking.
struct vg_way_refusals {
	uint64_t counts[13];
};
_Static_assert(sizeof(struct vg_way_refusals) == 104, "size of vg_way_refusals");
_Static_assert(offsetof(struct vg_way_refusals, counts) == 0, "offset of vg_way_refusals.counts");

// Distrust is what the container's processes found out about their own measurements of
// one GPU. Interposers before it leave it 0.
struct vg_distrust {
	// Uncharged counts claims on others' time that lapsed, as the others were not charged
	// for as much. It wraps around, as Aliased does.
	uint32_t uncharged;
	// Aliased counts measurements whose probes came back with the end of the work that they
	// were to tell of.
	uint32_t aliased;
	// DriftPPB is by how much the GPU's clock is faster than the host's, in parts per
	// billion, two's complement; 0 is unknown.
	uint32_t drift_ppb;
	// SliceNs is how long a process of the container has the GPU at a time beside others, in
	// ns; 0 is unknown.
	uint32_t slice_ns;
};
_Static_assert(sizeof(struct vg_distrust) == 16, "size of vg_distrust");
_Static_assert(offsetof(struct vg_distrust, uncharged) == 0, "offset of vg_distrust.uncharged");
_Static_assert(offsetof(struct vg_distrust, aliased) == 4, "offset of vg_distrust.aliased");
_Static_assert(offsetof(struct vg_distrust, drift_ppb) == 8, "offset of vg_distrust.drift_ppb");
_Static_assert(offsetof(struct vg_distrust, slice_ns) == 12, "offset of vg_distrust.slice_ns");

// UsageHeader is the first 4096 bytes of the file "usage".
struct vg_usage_header {
	uint64_t magic;
	uint32_t version;
	// SlotCount is MaxSlots.
	uint32_t slot_count;
	// Size is the size of the file in bytes.
	uint64_t size;
	// HighWater is one more than the highest slot ever taken: a bound for
	// scans. It only grows.
	uint32_t high_water;
	// DeviceCount is how many devices are used, in the limits page's order.
	uint32_t device_count;
	// PhaseOpen is 1 while all GPUs of the container have allowance, and work
	// may go to them; 0 from when one has none until all have some again.
	uint64_t phase_open;
	// PhaseReach is the most launches that any of them had in the phase that is
	// over: the others may have as many, too.
	uint64_t phase_reach;
	// PhaseInStep is 1 if they all had about as many in the last one.
	uint64_t phase_in_step;
	uint64_t reserved[1];
	struct vg_container_device devices[16];
	// Refusals tell ContainerDevice.Refusals apart; interposers before them
	// did not.
	struct vg_way_refusals refusals[16];
	// Distrust is, by device, what probes are worth.
	struct vg_distrust distrust[16];
	// Tail fills the header up to 4096 bytes.
	uint64_t tail[8];
};
_Static_assert(sizeof(struct vg_usage_header) == 4096, "size of vg_usage_header");
_Static_assert(offsetof(struct vg_usage_header, magic) == 0, "offset of vg_usage_header.magic");
_Static_assert(offsetof(struct vg_usage_header, version) == 8, "offset of vg_usage_header.version");
_Static_assert(offsetof(struct vg_usage_header, slot_count) == 12, "offset of vg_usage_header.slot_count");
_Static_assert(offsetof(struct vg_usage_header, size) == 16, "offset of vg_usage_header.size");
_Static_assert(offsetof(struct vg_usage_header, high_water) == 24, "offset of vg_usage_header.high_water");
_Static_assert(offsetof(struct vg_usage_header, device_count) == 28, "offset of vg_usage_header.device_count");
_Static_assert(offsetof(struct vg_usage_header, phase_open) == 32, "offset of vg_usage_header.phase_open");
_Static_assert(offsetof(struct vg_usage_header, phase_reach) == 40, "offset of vg_usage_header.phase_reach");
_Static_assert(offsetof(struct vg_usage_header, phase_in_step) == 48, "offset of vg_usage_header.phase_in_step");
_Static_assert(offsetof(struct vg_usage_header, reserved) == 56, "offset of vg_usage_header.reserved");
_Static_assert(offsetof(struct vg_usage_header, devices) == 64, "offset of vg_usage_header.devices");
_Static_assert(offsetof(struct vg_usage_header, refusals) == 2112, "offset of vg_usage_header.refusals");
_Static_assert(offsetof(struct vg_usage_header, distrust) == 3776, "offset of vg_usage_header.distrust");
_Static_assert(offsetof(struct vg_usage_header, tail) == 4032, "offset of vg_usage_header.tail");

// UsagePage is the file "usage", which every process of the container writes.
struct vg_usage_page {
	struct vg_usage_header header;
	struct vg_slot slots[1024];
};
_Static_assert(sizeof(struct vg_usage_page) == 2166784, "size of vg_usage_page");
_Static_assert(offsetof(struct vg_usage_page, header) == 0, "offset of vg_usage_page.header");
_Static_assert(offsetof(struct vg_usage_page, slots) == 4096, "offset of vg_usage_page.slots");

#endif
