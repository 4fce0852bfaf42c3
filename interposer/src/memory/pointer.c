// SPDX-License-Identifier: Apache-2.0

#include "pointer.h"

#include <stdlib.h>

#include "base/number.h"
#include "pool.h"
#include "pool_claim.h"
#include "pool_destroyed.h"
#include "pool_held.h"

// vg_pointer_lives reports whether the pool of an imported pointer still exists. In the pointer's
// entry, `object` is the record of the pool, and `extra` is the life of that record. `bytes` is the
// amount that the pointer adds to the pool. The end of a context does not free the entry.
static bool vg_pointer_lives(const struct vg_state *state, const struct vg_entry *entry)
{
	return vg_pool_life(state, entry->object) == entry->extra;
}

// vg_pointer_repeat is an import at an address. The driver may count imports of the same address.
struct vg_pointer_repeat {
	struct vg_state *state;
	bool known;
};

static struct vg_entry *vg_pointer_again(struct vg_entry *entry, void *context)
{
	struct vg_pointer_repeat *repeat = context;

	if (entry && !vg_pointer_lives(repeat->state, entry)) {
		free(entry); // the pointer ended with its pool
		entry = NULL;
	}
	repeat->known = entry != NULL;
	if (entry)
		entry->count++;
	return entry;
}

static bool vg_pointer_known(struct vg_state *state, CUdeviceptr address)
{
	struct vg_pointer_repeat repeat = {.state = state};

	vg_table_with(&state->table, VG_POINTER, address, vg_pointer_again, &repeat);
	return repeat.known;
}

// vg_pointer_bytes returns the size of the imported piece, or 0 if the driver does not report the
// size.
static uint64_t vg_pointer_bytes(CUdeviceptr address)
{
	CUdeviceptr base = 0;
	size_t bytes = 0;

	if (VG_CALL(cuPointerGetAttribute, &bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) || !bytes) {
		bytes = 0;
		if (VG_CALL(cuMemGetAddressRange_v2, &base, &bytes, address))
			return 0;
	}
	return vg_round_up(bytes, 2 * VG_MIB);
}

static bool vg_pointer_on_host(CUdeviceptr address)
{
	unsigned type = 0;

	return VG_CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
	       type == CU_MEMORYTYPE_HOST;
}

static CUresult vg_pointer_file(struct vg_state *state, struct vg_pool *pool, CUdeviceptr address,
				uint64_t bytes)
{
	uint32_t life = vg_pool_life(state, pool);
	struct vg_claim claim;
	struct vg_entry *entry;
	CUresult result = vg_pool_claim_pointer(&claim, pool, bytes);

	if (result)
		return result;
	entry = claim.entry;
	claim.entry = NULL;
	if (!vg_pool_claim_settle_pointer(&claim, bytes)) {
		free(entry);
		vg_pool_held_drop_pointer(state, pool, life, bytes);
		return vg_claim_refuse(&claim, bytes);
	}
	*entry = (struct vg_entry){.kind = VG_POINTER, .device = claim.device, .key = address,
				   .bytes = bytes, .extra = life, .count = 1, .object = pool};
	vg_table_put(&state->table, entry);
	return CUDA_SUCCESS;
}

CUresult vg_pointer_charge(struct vg_state *state, CUmemoryPool handle, CUdeviceptr address)
{
	uint64_t bytes = vg_pointer_bytes(address);
	struct vg_claim claim;
	struct vg_pool *pool;
	CUdevice device = -1;

	if (vg_pointer_on_host(address) || vg_pointer_known(state, address))
		return CUDA_SUCCESS;
	if (!bytes || VG_CALL(cuPointerGetAttribute, &device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address))
		// The interposer cannot determine the memory's GPU and size.
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (vg_state_device(state, device) < 0)
		return vg_claim_on(&claim, device, VG_WAY_IMPORT, bytes); // this claim is refused
	pool = vg_pool_imported(state, handle, device);
	return pool ? vg_pointer_file(state, pool, address, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
}

struct vg_entry *vg_pointer_take(struct vg_state *state, CUdeviceptr address)
{
	return state ? vg_table_take(&state->table, VG_POINTER, address) : NULL;
}

// vg_pointer_stays restores the entry of a pointer that was not freed, or was imported more than
// once. vg_pointer_stays reports whether it restored the entry.
static bool vg_pointer_stays(struct vg_state *state, struct vg_entry *entry, bool freed)
{
	if (freed && --entry->count == 0)
		return false;
	vg_table_put(&state->table, entry);
	return true;
}

void vg_pointer_freed(struct vg_state *state, struct vg_entry *entry, bool freed)
{
	if (!entry || vg_pointer_stays(state, entry, freed))
		return;
	vg_pool_held_drop_pointer(state, entry->object, (uint32_t)entry->extra, entry->bytes);
	free(entry);
}

void vg_pointer_freed_async(struct vg_state *state, struct vg_entry *entry, bool freed,
			    CUstream stream, bool per_thread)
{
	if (!entry || vg_pointer_stays(state, entry, freed))
		return;
	vg_pool_destroyed_pointer_freed_in(state, entry->object, (uint32_t)entry->extra, entry->bytes, stream, per_thread);
	free(entry);
}
