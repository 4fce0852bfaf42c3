// SPDX-License-Identifier: Apache-2.0

// This file handles virtual memory management. When a program creates physical memory of a GPU, the
// interposer charges the memory to that GPU, whichever context is current. The memory is released
// when all references to its handle have been released, and all mappings have been undone, in any
// order. Host memory is not charged.
//
// Imported memory is charged like new memory, because its exporter may release the memory or die.
// Therefore, memory that one process of a container exports and another process imports is charged
// twice. cu_keep.c handles exports.

#include "memory/claim.h"

#include <stdlib.h>

#include "base/number.h"
#include "driver/allocation.h"
#include "driver/handle.h"
#include "memory/physical.h"
#include "pages/limits.h"

VG_API(cuMemCreate, CUmemGenericAllocationHandle *handle, size_t bytes,
       const CUmemAllocationProp *properties, unsigned long long flags)
{
	struct vg_physical *physical;
	struct vg_claim claim;
	CUdevice device;
	CUresult result;

	if (!vg_state_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!properties || !vg_handle_location(&properties->location, &device))
		return VG_CALL(cuMemCreate, handle, bytes, properties, flags);
	result = vg_claim_on(&claim, device, VG_WAY_VMM, vg_round_up(bytes, 2 * VG_MIB));
	if (result)
		return result;
	physical = calloc(1, sizeof *physical);
	result = physical ? VG_CALL(cuMemCreate, handle, bytes, properties, flags) :
			    CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		free(physical);
		vg_claim_void(&claim);
		return result;
	}
	*physical = (struct vg_physical){.references = 1, .device = claim.device, .bytes = claim.bytes};
	claim.entry->object = physical;
	claim.entry->count = 1; // number of releases that the handle needs
	vg_claim_settle(&claim, VG_PHYSICAL, *handle, 0);
	return CUDA_SUCCESS;
}

static struct vg_entry *vg_handle_again(struct vg_entry *entry, void *context)
{
	vg_physical_use(entry, context);
	if (entry)
		entry->count++;
	return entry;
}

// vg_mapping_at finds the mapping that contains an address. vg_mapping_at always returns false, so
// that vg_table_sweep removes no entry.
struct vg_mapping_at {
	uint64_t address;
	struct vg_physical_use *use;
};

static bool vg_mapping_at(const struct vg_entry *entry, const void *context)
{
	const struct vg_mapping_at *at = context;

	if (!at->use->physical && entry->kind == VG_MAPPING && at->address >= entry->key &&
	    at->address - entry->key < entry->bytes) {
		at->use->physical = entry->object;
		atomic_fetch_add(&at->use->physical->references, 1);
	}
	return false;
}

// vg_mapping_use takes a reference to the memory that is mapped at an address. Most programs pass
// the start of a mapping, which needs no search.
static struct vg_physical *vg_mapping_use(struct vg_state *state, uint64_t address)
{
	struct vg_physical_use use = {NULL};
	const struct vg_mapping_at at = {address, &use};

	vg_table_with(&state->table, VG_MAPPING, address, vg_physical_use, &use);
	if (!use.physical)
		vg_table_sweep(&state->table, vg_mapping_at, &at);
	return use.physical;
}

// vg_handle_file counts a reference of the program to a handle, and files an entry if the handle
// has no entry. vg_handle_file takes over the caller's reference to the memory.
static void vg_handle_file(struct vg_state *state, CUmemGenericAllocationHandle handle,
			   struct vg_physical *physical)
{
	struct vg_physical_use known = {NULL};
	struct vg_entry *entry;

	vg_table_with(&state->table, VG_PHYSICAL, handle, vg_handle_again, &known);
	if (!physical)
		return;
	if (known.physical) {
		vg_physical_put(state, physical);
		return;
	}
	// The handle was released before, and only mappings held the memory.
	entry = calloc(1, sizeof *entry);
	if (!entry)
		return; // the memory stays charged, so that the charge is never too low
	*entry = (struct vg_entry){.kind = VG_PHYSICAL, .key = handle, .count = 1, .object = physical};
	vg_table_put(&state->table, entry);
}

// The driver returns the handle of a mapping, which the program must release once more. The
// function takes its reference to the memory before the driver's call. Another thread may undo the
// mapping as soon as that call returns.
VG_API(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *handle, void *address)
{
	struct vg_state *state = vg_state_ready();
	struct vg_physical *physical;
	CUresult result;

	if (!state)
		return VG_CALL(cuMemRetainAllocationHandle, handle, address);
	vg_calls_begin(state);
	physical = vg_mapping_use(state, vg_handle_key(address));
	result = VG_CALL(cuMemRetainAllocationHandle, handle, address);
	if (!result)
		vg_handle_file(state, *handle, physical);
	else if (physical)
		vg_physical_put(state, physical);
	vg_calls_end(state);
	return result;
}

struct vg_handle_release {
	struct vg_physical *physical;
	struct vg_entry *removed;
};

static struct vg_entry *vg_handle_release(struct vg_entry *entry, void *context)
{
	struct vg_handle_release *release = context;

	if (!entry)
		return NULL;
	release->physical = entry->object;
	if (--entry->count > 0)
		return entry;
	release->removed = entry;
	return NULL;
}

// The entry is removed before the driver frees the handle, because the driver may reuse the handle
// for another thread immediately. cuMemRelease drops the reference afterwards.
VG_API(cuMemRelease, CUmemGenericAllocationHandle handle)
{
	struct vg_state *state = vg_state_ready();
	struct vg_handle_release release = {NULL, NULL};
	CUresult result;

	if (!state)
		return VG_CALL(cuMemRelease, handle);
	vg_calls_begin(state);
	vg_table_with(&state->table, VG_PHYSICAL, handle, vg_handle_release, &release);
	free(release.removed);
	result = VG_CALL(cuMemRelease, handle);
	if (release.physical && result)
		vg_handle_file(state, handle, release.physical);
	else if (release.physical)
		vg_physical_put(state, release.physical);
	vg_calls_end(state);
	return result;
}

VG_API(cuMemMap, CUdeviceptr address, size_t bytes, size_t offset,
       CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct vg_state *state = vg_state_ready();
	struct vg_physical_use use = {NULL};
	struct vg_entry *entry = state ? calloc(1, sizeof *entry) : NULL;
	CUresult result;

	if (!entry)
		return state ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_INITIALIZED;
	vg_table_with(&state->table, VG_PHYSICAL, handle, vg_physical_use, &use);
	vg_calls_begin(state);
	result = VG_CALL(cuMemMap, address, bytes, offset, handle, flags);
	if (result || !use.physical) {
		if (use.physical)
			vg_physical_put(state, use.physical);
		free(entry);
	} else {
		*entry = (struct vg_entry){.kind = VG_MAPPING, .key = address, .bytes = bytes,
					   .object = use.physical};
		vg_table_put(&state->table, entry);
	}
	vg_calls_end(state);
	return result;
}

struct vg_range {
	uint64_t from;
	uint64_t to;
};

// vg_mapped_in reports whether a mapping lies within the range. The driver unmaps only mappings
// that lie within the range.
static bool vg_mapped_in(const struct vg_entry *entry, const void *context)
{
	const struct vg_range *range = context;

	return entry->kind == VG_MAPPING && entry->key >= range->from && entry->key < range->to &&
	       entry->bytes <= range->to - entry->key;
}

// vg_mappings_take removes the mappings of a range from the table. Programs usually unmap exactly
// one mapping, which needs no search.
static struct vg_entry *vg_mappings_take(struct vg_state *state, CUdeviceptr address, size_t bytes)
{
	const struct vg_range range = {address, vg_add_saturating(address, bytes)};
	struct vg_entry *first = vg_table_take(&state->table, VG_MAPPING, address);

	if (first && first->bytes == bytes) {
		first->next = NULL;
		return first;
	}
	if (first)
		vg_table_put(&state->table, first);
	return vg_table_sweep(&state->table, vg_mapped_in, &range);
}

VG_API(cuMemUnmap, CUdeviceptr address, size_t bytes)
{
	struct vg_state *state = vg_state_ready();
	struct vg_entry *entry;
	CUresult result;

	if (!state)
		return VG_CALL(cuMemUnmap, address, bytes);
	vg_calls_begin(state);
	entry = vg_mappings_take(state, address, bytes);
	result = VG_CALL(cuMemUnmap, address, bytes);
	while (entry) {
		struct vg_entry *next = entry->next;

		if (result) {
			vg_table_put(&state->table, entry);
		} else {
			vg_physical_put(state, entry->object);
			free(entry);
		}
		entry = next;
	}
	vg_calls_end(state);
	return result;
}

// ---- imports

// vg_import_new charges imported memory and files the memory's handle.
static CUresult vg_import_new(struct vg_state *state, CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp properties = {.type = 0};
	struct vg_physical *physical;
	struct vg_claim claim;
	CUdevice device;
	uint64_t bytes;
	CUresult result;
	int index;

	if (VG_CALL(cuMemGetAllocationPropertiesFromHandle, &properties, handle))
		// The interposer cannot determine the memory's GPU and size.
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!vg_handle_location(&properties.location, &device))
		return CUDA_SUCCESS;
	index = vg_state_device(state, device);
	bytes = index < 0 ? 0 : vg_allocation_bytes(handle, &properties, vg_limits_memory(&state->pages, (uint32_t)index));
	result = vg_claim_on(&claim, device, VG_WAY_IMPORT, vg_round_up(bytes, 2 * VG_MIB));
	if (result)
		return result;
	physical = calloc(1, sizeof *physical);
	if (!physical) {
		vg_claim_void(&claim);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*physical = (struct vg_physical){
		.references = 1, .device = claim.device, .imported = true, .bytes = claim.bytes,
	};
	vg_claim_charge(&claim, VG_PHYSICAL);
	vg_handle_file(state, handle, physical);
	vg_claim_end(&claim);
	return CUDA_SUCCESS;
}

// The driver may have returned the handle before. The memory already exists. The function therefore
// imports the memory before the claim, and releases the memory again if the limit has no room.
VG_API(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
	struct vg_state *state = vg_state_ready();
	struct vg_physical_use known = {NULL};
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	vg_calls_begin(state);
	result = VG_CALL(cuMemImportFromShareableHandle, handle, shareable, type);
	if (!result)
		vg_table_with(&state->table, VG_PHYSICAL, *handle, vg_handle_again, &known);
	vg_calls_end(state);
	if (result || known.physical)
		return result;
	result = vg_import_new(state, *handle);
	if (result)
		VG_CALL(cuMemRelease, *handle);
	return result;
}
