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
// Version is the version of both layouts. A reader refuses any other version.
#define VG_VERSION 1u
// MaxDevices bounds the GPUs of one container.
#define VG_MAX_DEVICES 16u
// MaxSlots bounds the processes of one container that use CUDA at a time.
#define VG_MAX_SLOTS 1024u
// PPM is a whole GPU in parts per million. As a compute limit, PPM means no limit.
#define VG_PPM 1000000u
// KindGPU marks a whole GPU's UUID.
#define VG_KIND_GPU 1u
// KindMIG marks a MIG device's UUID.
#define VG_KIND_MIG 2u
// FlagShare marks a container that may exceed its part of the GPU time by leases on time that
// other containers do not use. The container's MaximumPPM is above its ComputePPM.
#define VG_FLAG_SHARE 1u
// FlagMPS marks a GPU that containers share through the Multi-Process Service. ComputePPM is
// the part of the GPU that the MPS server lets the container fill; GPU time has no limit.
#define VG_FLAG_MPS 2u
// LeasePPMBits is the width of the part of the GPU's time in a lease. The higher bits hold
// the lease's end, in units of 1 << LeaseUnitBits ns of CLOCK_MONOTONIC.
#define VG_LEASE_PPM_BITS 20u
// LeaseUnitBits is the number of low bits that a lease's end omits.
#define VG_LEASE_UNIT_BITS 16u
// RefusalSizeBits is the width of the size in a packed refusal. The higher bits hold the
// way of allocating.
#define VG_REFUSAL_SIZE_BITS 56u
// ObservedLookBits is the width of the observation's number in an observed value. The
// higher bits hold the bytes, as a multiple of 1 << ObservedLookBits.
#define VG_OBSERVED_LOOK_BITS 12u
// UnknownContextBytes is the charge for a context whose size is not on the limits page.
// UnknownContextBytes exceeds the size of every known context.
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
// WayCount is the number of ways, including WayNone.
#define VG_WAY_COUNT 13u

// LimitsDevice is the limit on one GPU.
struct vg_limits_device {
	// UUID is the device's 16-byte UUID as the driver reports it.
	uint8_t uuid[16];
	// Kind is KindGPU or KindMIG.
	uint32_t kind;
	// ComputePPM is the part of the GPU's time in parts per million. The value PPM means no limit.
	uint32_t compute_ppm;
	// MemoryBytes is the limit on device memory, including contexts.
	uint64_t memory_bytes;
	// ContextBytes is the expected size of one context; 0 means unknown.
	uint64_t context_bytes;
	// Flags is FlagShare, FlagMPS or 0.
	uint32_t flags;
	// Multiprocessors is the GPU's number of multiprocessors, if FlagMPS is set; 0 means unknown. A
	// client of MPS with a limit sees fewer multiprocessors.
	uint32_t multiprocessors;
	// MaximumPPM, with FlagShare, is the most of the GPU's time that the container may use with
	// leases. 0 stands for PPM, since releases without the field write 0.
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

// LimitsCopy is one complete set of limits. A page has two copies. A writer fills the inactive copy
// and activates it by one store of the generation. A writer that dies before the store does not
// change the active copy.
struct vg_limits_copy {
	// Generation is the page's generation to which the copy belongs.
	uint64_t generation;
	// DeviceCount is the number of valid entries of Devices.
	uint32_t device_count;
	// Reserved is 0.
	uint32_t reserved;
	struct vg_limits_device devices[16];
	// Checksum is the FNV-1a hash (64 bits) of all preceding bytes of the copy.
	uint64_t checksum;
};
_Static_assert(sizeof(struct vg_limits_copy) == 1048, "size of vg_limits_copy");
_Static_assert(offsetof(struct vg_limits_copy, generation) == 0, "offset of vg_limits_copy.generation");
_Static_assert(offsetof(struct vg_limits_copy, device_count) == 8, "offset of vg_limits_copy.device_count");
_Static_assert(offsetof(struct vg_limits_copy, reserved) == 12, "offset of vg_limits_copy.reserved");
_Static_assert(offsetof(struct vg_limits_copy, devices) == 16, "offset of vg_limits_copy.devices");
_Static_assert(offsetof(struct vg_limits_copy, checksum) == 1040, "offset of vg_limits_copy.checksum");

// LimitsPage is the file "limits", which is read-only for the container.
struct vg_limits_page {
	uint64_t magic;
	uint32_t version;
	// Size is the size of the page in bytes.
	uint32_t size;
	// Generation counts the changes; its lowest bit selects the active copy.
	uint64_t generation;
	uint64_t reserved[5];
	struct vg_limits_copy copies[2];
	// Observed is, per GPU, the memory that the agent last saw the container hold. The value
	// is 0 if the memory did not exceed the claim on the usage page. The low bits hold the
	// observation's number, which distinguishes observations of equal size. Observed is not
	// part of the copies: one store sets it.
	uint64_t observed[16];
	// Leases are, per device, the part of the GPU's time that a container with FlagShare may use
	// for a few milliseconds beyond its limit. Each lease is one word, written at any time; 0 means
	// no lease.
	uint64_t leases[16];
	// Others is, per device, the GPU time charged to all other containers of that GPU, in ns
	// since an arbitrary start. The agent counts the time, and Others wraps around.
	uint64_t others[16];
	// OthersLooks are, per device, the part of the GPU's time that the other containers may
	// have, in parts per million. The higher bits hold the time of the last update of Others.
	// Each entry is one word, packed as a lease; 0 if the agent does not count.
	uint64_t others_looks[16];
	// Tail pads the page to 4096 bytes.
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

// SlotDevice is the usage of one process on one GPU.
struct vg_slot_device {
	// Used is the granted bytes, including bytes that the process is allocating from the driver
	// now.
	uint64_t used;
	// Pending is the bytes requested and not yet granted.
	uint64_t pending;
	// Peak is the largest Used so far.
	uint64_t peak;
	// ContextBytes is the part of Used that contexts take.
	uint64_t context_bytes;
	// GPUTimeNs is the GPU time used, in ns.
	uint64_t gpu_time_ns;
	// WaitNs is the time for which the interposer delayed launches, in ns.
	uint64_t wait_ns;
	// Launches counts the launches on the GPU.
	uint64_t launches;
	// Refusals counts refused allocations.
	uint64_t refusals;
	// LastRefusal is the last refusal: way << RefusalSizeBits | size in bytes.
	uint64_t last_refusal;
	// UnmeasuredNs is the time since which the process has had running work of unknown duration, in
	// ns of CLOCK_MONOTONIC; 0 means no work. If the process dies, the interposer charges the
	// container from UnmeasuredNs on.
	uint64_t unmeasured_ns;
	uint64_t reserved[6];
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
_Static_assert(offsetof(struct vg_slot_device, unmeasured_ns) == 72, "offset of vg_slot_device.unmeasured_ns");
_Static_assert(offsetof(struct vg_slot_device, reserved) == 80, "offset of vg_slot_device.reserved");

// Slot is the usage of one process. The process owns the slot as long as it holds an OFD lock
// on the slot's bytes of the file.
struct vg_slot {
	// PID is the process id in the container's pid namespace, a claim for display only.
	uint32_t pid;
	// Reserved0 is 0.
	uint32_t reserved0;
	// AttachedNs is the time at which the process attached, in ns of CLOCK_BOOTTIME.
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

// ContainerDevice is the usage of the whole container on one GPU.
struct vg_container_device {
	// Refusals counts the refused allocations of all processes, including dead processes.
	uint64_t refusals;
	// LastRefusal has the format of SlotDevice.LastRefusal.
	uint64_t last_refusal;
	// RetiredGPUTimeNs, RetiredWaitNs and RetiredLaunches are the sums over the processes of
	// reclaimed slots.
	uint64_t retired_gpu_time_ns;
	uint64_t retired_wait_ns;
	uint64_t retired_launches;
	// BucketNs is the container's balance of GPU time, in ns. BucketNs is in two's complement,
	// since the balance may be negative.
	uint64_t bucket_ns;
	// BucketFilledNs is the time of the bucket's last refill, in ns of CLOCK_MONOTONIC.
	uint64_t bucket_filled_ns;
	// SpentNs is all GPU time ever taken from the bucket, in ns, minus refunds.
	uint64_t spent_ns;
	// Launches counts the launches on the GPU, if the container has several GPUs.
	uint64_t launches;
	// PhaseLaunches is the value of Launches when the current phase of the container's GPUs
	// opened. PhaseGoal is PhaseLaunches plus the launches still due from the previous phase.
	uint64_t phase_launches;
	uint64_t phase_goal;
	// Peak is the most memory granted to all processes at the same time. The memory of a
	// killed process counts until another process needs it or takes its slot.
	uint64_t peak;
	// ClippedNs is unused. Interposers of the previous release write ClippedNs.
	uint64_t clipped_ns;
	// UnmeasuredNs is the time up to which the container has paid for unmeasured work of dead
	// processes, in ns of CLOCK_MONOTONIC.
	uint64_t unmeasured_ns;
	uint64_t reserved[2];
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
_Static_assert(offsetof(struct vg_container_device, unmeasured_ns) == 104, "offset of vg_container_device.unmeasured_ns");
_Static_assert(offsetof(struct vg_container_device, reserved) == 112, "offset of vg_container_device.reserved");

// WayRefusals counts the refused allocations of one GPU by the way of allocating.
struct vg_way_refusals {
	uint64_t counts[13];
};
_Static_assert(sizeof(struct vg_way_refusals) == 104, "size of vg_way_refusals");
_Static_assert(offsetof(struct vg_way_refusals, counts) == 0, "offset of vg_way_refusals.counts");

// Distrust holds the errors that the container's processes detected in their own measurements
// of one GPU. Interposers older than Distrust write 0.
struct vg_distrust {
	// Uncharged counts the claims on other containers' time that lapsed because the other
	// containers were charged less. Uncharged and Aliased wrap around.
	uint32_t uncharged;
	// Aliased counts the measurements whose probes completed only with the end of the measured
	// work.
	uint32_t aliased;
	// DriftPPB is the rate by which the GPU's clock is faster than the host's, in parts per
	// billion, two's complement; 0 means unknown.
	uint32_t drift_ppb;
	// SliceNs is the GPU time slice of a process of the container beside other processes, in ns; 0
	// means unknown.
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
	// HighWater is one more than the highest slot ever taken. HighWater bounds scans, and only
	// grows.
	uint32_t high_water;
	// DeviceCount is the number of used devices, in the limits page's order.
	uint32_t device_count;
	// PhaseOpen is 1 while the container may launch work on all of its GPUs. PhaseOpen becomes 0
	// when one GPU's balance is exhausted, and 1 again when all GPUs have a balance.
	uint64_t phase_open;
	// PhaseReach is the largest number of launches on any of the GPUs in the previous phase. Each
	// other GPU may reach the same number after the end of the phase.
	uint64_t phase_reach;
	// PhaseInStep is 1 if all GPUs had about as many launches in the previous phase.
	uint64_t phase_in_step;
	uint64_t reserved[1];
	struct vg_container_device devices[16];
	// Refusals counts ContainerDevice.Refusals by way. Interposers older than the field write
	// 0.
	struct vg_way_refusals refusals[16];
	// Distrust is, per device, how reliable the interposer's probes are.
	struct vg_distrust distrust[16];
	// Tail pads the header to 4096 bytes.
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
