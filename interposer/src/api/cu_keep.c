// SPDX-License-Identifier: Apache-2.0

// This file handles memory that stays allocated after its release. A file descriptor keeps exported
// memory allocated, and the interposer cannot determine which process has the descriptor. Other
// processes may import memory that is bound to a multicast object or a logical endpoint. An array
// keeps memory that is mapped into it.
//
// All this memory stays charged after its release. The charge then counts as an estimate. The charge
// ends when the agent measures that the memory is gone (correction.h).

#include "memory/physical.h"

#include "base/number.h"
#include "driver/handle.h"

static struct vg_entry *vg_handle_keep(struct vg_entry *entry, void *context)
{
	vg_physical_use(entry, context);
	if (entry)
		atomic_fetch_add(&((struct vg_physical *)entry->object)->exports, 1);
	return entry;
}

// vg_keep_begin counts the memory as kept before the driver's call, because another thread may
// release the memory as soon as that call returns.
static void vg_keep_begin(struct vg_state *state, CUmemGenericAllocationHandle handle,
			  struct vg_physical_use *use)
{
	use->physical = NULL;
	vg_calls_begin(state);
	vg_table_with(&state->table, VG_PHYSICAL, handle, vg_handle_keep, use);
}

static CUresult vg_keep_end(struct vg_state *state, const struct vg_physical_use *use, CUresult result)
{
	if (use->physical && result)
		atomic_fetch_sub(&use->physical->exports, 1);
	if (use->physical)
		vg_physical_put(state, use->physical);
	vg_calls_end(state);
	return result;
}

#define VG_DEFINE_KEEP(name, parameters, handle, ...)                                \
	VG_API(name, VG_PARAMETERS parameters)                                       \
	{                                                                            \
		struct vg_state *state = vg_state_ready();                           \
		struct vg_physical_use use;                                            \
                                                                                     \
		if (!state)                                                          \
			return VG_CALL(name, __VA_ARGS__);                           \
		vg_keep_begin(state, handle, &use);                                  \
		return vg_keep_end(state, &use, VG_CALL(name, __VA_ARGS__));         \
	}
#define VG_PARAMETERS(...) __VA_ARGS__

VG_DEFINE_KEEP(cuMemExportToShareableHandle,
	       (void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags),
	       handle, shareable, handle, type, flags)
VG_DEFINE_KEEP(cuMulticastBindMem,
	       (CUmemGenericAllocationHandle group, size_t at, CUmemGenericAllocationHandle handle,
		size_t from, size_t bytes, unsigned long long flags),
	       handle, group, at, handle, from, bytes, flags)
VG_DEFINE_KEEP(cuMulticastBindMem_v2,
	       (CUmemGenericAllocationHandle group, CUdevice device, size_t at,
		CUmemGenericAllocationHandle handle, size_t from, size_t bytes, unsigned long long flags),
	       handle, group, device, at, handle, from, bytes, flags)
VG_DEFINE_KEEP(cuLogicalEndpointBindMem,
	       (uint32_t endpoint, CUdevice device, uint64_t at, CUmemGenericAllocationHandle handle,
		uint64_t from, uint64_t bytes, unsigned long long flags),
	       handle, endpoint, device, at, handle, from, bytes, flags)

struct vg_range {
	uint64_t from;
	uint64_t to;
	uint64_t kept; // added to the exports of the range's memory: 1 or -1
};

static bool vg_mapping_keep(const struct vg_entry *entry, const void *context)
{
	const struct vg_range *range = context;

	if (entry->kind == VG_MAPPING && entry->key < range->to && entry->key + entry->bytes > range->from)
		atomic_fetch_add(&((struct vg_physical *)entry->object)->exports, (uint32_t)range->kept);
	return false;
}

// Memory that is bound by address counts as kept even if the driver refuses the binding. In that
// case the agent's measurement releases the charge later.
#define VG_DEFINE_KEEP_RANGE(name, parameters, address, bytes, ...)                              \
	VG_API(name, VG_PARAMETERS parameters)                                                   \
	{                                                                                        \
		struct vg_state *state = vg_state_ready();                                       \
		const struct vg_range range = {address, vg_add_saturating(address, bytes), 1};   \
                                                                                                 \
		if (state)                                                                       \
			vg_table_sweep(&state->table, vg_mapping_keep, &range);                  \
		return VG_CALL(name, __VA_ARGS__);                                               \
	}

VG_DEFINE_KEEP_RANGE(cuMulticastBindAddr,
		     (CUmemGenericAllocationHandle group, size_t at, CUdeviceptr address, size_t bytes,
		      unsigned long long flags),
		     address, bytes, group, at, address, bytes, flags)
VG_DEFINE_KEEP_RANGE(cuMulticastBindAddr_v2,
		     (CUmemGenericAllocationHandle group, CUdevice device, size_t at, CUdeviceptr address,
		      size_t bytes, unsigned long long flags),
		     address, bytes, group, device, at, address, bytes, flags)
VG_DEFINE_KEEP_RANGE(cuLogicalEndpointBindAddr,
		     (uint32_t endpoint, CUdevice device, uint64_t at, void *address, uint64_t bytes,
		      unsigned long long flags),
		     vg_handle_key(address), bytes, endpoint, device, at, address, bytes, flags)

static struct vg_entry *vg_handle_mark(struct vg_entry *entry, void *context)
{
	(void)context;
	if (entry)
		atomic_fetch_add(&((struct vg_physical *)entry->object)->exports, 1);
	return entry;
}

// Memory that is mapped into an array counts as kept even if the driver refuses the mapping.
#define VG_DEFINE_MAP_ARRAY(name)                                                                \
	VG_API(name, CUarrayMapInfo *list, unsigned count, CUstream stream)                      \
	{                                                                                        \
		struct vg_state *state = vg_state_ready();                                       \
                                                                                                 \
		for (unsigned i = 0; state && list && i < count; i++)                            \
			if (list[i].memOperationType != CU_MEM_OPERATION_TYPE_UNMAP)             \
				vg_table_with(&state->table, VG_PHYSICAL,                        \
					      list[i].memHandle.memHandle, vg_handle_mark, NULL); \
		return VG_CALL(name, list, count, stream);                                       \
	}

VG_DEFINE_MAP_ARRAY(cuMemMapArrayAsync)
VG_DEFINE_MAP_ARRAY(cuMemMapArrayAsync_ptsz)

static struct vg_entry *vg_linear_keep(struct vg_entry *entry, void *context)
{
	const struct vg_range *range = context;

	if (entry)
		entry->count += range->kept;
	return entry;
}

// vg_range_keep counts the memory of a range as kept by a descriptor, or undoes the count. The range
// is mapped memory, or a part of linear memory.
static void vg_range_keep(struct vg_state *state, CUdeviceptr address, size_t bytes, bool kept)
{
	struct vg_range range = {address, vg_add_saturating(address, bytes), kept ? 1 : UINT64_MAX};
	CUdeviceptr base = 0;
	size_t size = 0;

	vg_table_sweep(&state->table, vg_mapping_keep, &range);
	if (VG_CALL(cuMemGetAddressRange_v2, &base, &size, address) == CUDA_SUCCESS)
		vg_table_with(&state->table, VG_LINEAR, base, vg_linear_keep, &range);
}

VG_API(cuMemGetHandleForAddressRange, void *handle, CUdeviceptr address, size_t bytes, int type,
       unsigned long long flags)
{
	struct vg_state *state = vg_state_ready();
	CUresult result;

	if (!state)
		return VG_CALL(cuMemGetHandleForAddressRange, handle, address, bytes, type, flags);
	vg_range_keep(state, address, bytes, true);
	result = VG_CALL(cuMemGetHandleForAddressRange, handle, address, bytes, type, flags);
	if (result)
		vg_range_keep(state, address, bytes, false);
	return result;
}
