// SPDX-License-Identifier: Apache-2.0

// This file handles the memory of a context that a program can enlarge: stacks, the device heap and
// the FIFO of printf.
//
// The interposer files the entry of a limit before the driver first changes the limit. The entry
// has the value of the limit at that time. The memory for that value is part of the context. If
// several threads raise a limit, each thread claims the difference to the charge that the thread
// found. When a thread settles, the interposer charges the part that is still missing.

#include "memory/claim.h"

#include <stdlib.h>

#include "base/number.h"
#include "driver/handle.h"
#include "memory/correction.h"
#include "pages/reserve.h"

// vg_heap_granule is the largest size to which a known driver rounds.
static const uint64_t vg_heap_granule = 2 * VG_MIB;

// vg_heap_key returns the key of a limit's entry: the context, with the limit in the bits above the
// address.
static uint64_t vg_heap_key(uint64_t context, int limit)
{
	return context | (uint64_t)(limit + 1) << 48;
}

// vg_heap_unit returns the number of bytes on the device for each byte of the limit. For stacks,
// the factor is the number of threads that the GPU can run at a time.
static uint64_t vg_heap_unit(int limit)
{
	CUdevice device;
	int processors;
	int threads;

	if (limit != CU_LIMIT_STACK_SIZE)
		return 1;
	if (VG_CALL(cuCtxGetDevice, &device) ||
	    VG_CALL(cuDeviceGetAttribute, &processors,
		    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) ||
	    VG_CALL(cuDeviceGetAttribute, &threads,
		    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) ||
	    processors <= 0 || threads <= 0)
		return UINT64_MAX;
	return (uint64_t)processors * (uint64_t)threads;
}

static uint64_t vg_heap_bytes(int limit, size_t first, size_t value)
{
	uint64_t unit = vg_heap_unit(limit);

	if (value <= first)
		return 0;
	if (value - first > UINT64_MAX / unit)
		return UINT64_MAX;
	return vg_round_up((value - first) * unit, vg_heap_granule);
}

static struct vg_entry *vg_heap_look(struct vg_entry *entry, void *context)
{
	if (entry)
		*(struct vg_entry *)context = *entry;
	return entry;
}

// vg_heap_filed copies the entry of a limit. If the limit has no entry, vg_heap_filed first files
// an entry.
static CUresult vg_heap_filed(struct vg_state *state, uint64_t context, int limit,
			      struct vg_entry *copy)
{
	uint64_t key = vg_heap_key(context, limit);
	struct vg_entry *entry;
	size_t first = 0;
	CUresult result;

	copy->kind = 0;
	vg_table_with(&state->table, VG_HEAP, key, vg_heap_look, copy);
	if (copy->kind)
		return CUDA_SUCCESS;
	result = VG_CALL(cuCtxGetLimit, &first, limit);
	if (result)
		return result;
	entry = calloc(1, sizeof *entry);
	if (!entry)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*entry = (struct vg_entry){.kind = VG_HEAP, .key = key, .context = context, .extra = first};
	if (!vg_table_put_new(&state->table, entry))
		free(entry); // another thread has filed the first value
	vg_table_with(&state->table, VG_HEAP, key, vg_heap_look, copy);
	return copy->kind ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// vg_heap_growth is the growth of a limit's charge.
struct vg_heap_growth {
	uint32_t device;
	uint64_t bytes; // bytes that the limit takes now
	uint64_t grown;
};

// vg_heap_grow never lowers the charge, because the driver may keep the memory of a larger earlier
// value until the context ends.
static struct vg_entry *vg_heap_grow(struct vg_entry *entry, void *context)
{
	struct vg_heap_growth *growth = context;

	if (!entry)
		return NULL;
	growth->grown = growth->bytes - vg_min(growth->bytes, entry->bytes);
	entry->bytes += growth->grown;
	entry->device = growth->device;
	return entry;
}

// vg_heap_settle charges the growth of the limit out of the claim. The driver may allocate the
// memory only when a kernel needs it. Until that time, the memory counts as uncertain, and adds no
// credit.
static void vg_heap_settle(struct vg_claim *claim, uint64_t key, uint64_t bytes)
{
	struct vg_heap_growth growth = {.device = claim->device, .bytes = bytes};
	struct vg_state *state = claim->state;

	vg_table_with(&state->table, VG_HEAP, key, vg_heap_grow, &growth);
	vg_correction_uncertain_made(state, claim->device, growth.grown);
	// The driver has accepted the value. The interposer charges the value, whatever the
	// container's limit is.
	vg_reserve_settle(&state->pages, claim->device, claim->bytes, growth.grown);
	claim->bytes = 0;
	vg_claim_end(claim);
}

// vg_heap_charge claims the growth of the limit above its first value, and sets the limit.
static CUresult vg_heap_charge(struct vg_state *state, int limit, size_t value)
{
	uint64_t context = vg_handle_context();
	struct vg_claim claim;
	struct vg_entry filed;
	uint64_t bytes;
	CUresult result = vg_heap_filed(state, context, limit, &filed);

	if (result)
		return result;
	bytes = vg_heap_bytes(limit, (size_t)filed.extra, value);
	result = vg_claim_current(&claim, VG_WAY_CONTEXT, bytes - vg_min(bytes, filed.bytes));
	if (result)
		return result;
	result = VG_CALL(cuCtxSetLimit, limit, value);
	if (result)
		vg_claim_void(&claim);
	else
		vg_heap_settle(&claim, vg_heap_key(context, limit), bytes);
	return result;
}

VG_API(cuCtxSetLimit, int limit, size_t value)
{
	struct vg_state *state = vg_state_ready();

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (limit != CU_LIMIT_STACK_SIZE && limit != CU_LIMIT_MALLOC_HEAP_SIZE &&
	    limit != CU_LIMIT_PRINTF_FIFO_SIZE)
		return VG_CALL(cuCtxSetLimit, limit, value);
	return vg_heap_charge(state, limit, value);
}
