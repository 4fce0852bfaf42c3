// SPDX-License-Identifier: Apache-2.0

#include "claim.h"

#include <stdlib.h>

#include "audit.h"
#include "base/log.h"
#include "base/number.h"
#include "correction.h"
#include "pages/limits.h"
#include "pages/reserve.h"
#include "pages/usage.h"

static const char *const vg_way_names[] = {
	[VG_WAY_CONTEXT] = "a context", [VG_WAY_ALLOC] = "cuMemAlloc",
	[VG_WAY_PITCH] = "cuMemAllocPitch", [VG_WAY_MANAGED] = "cuMemAllocManaged",
	[VG_WAY_ARRAY] = "an array", [VG_WAY_MIPMAP] = "a mipmapped array",
	[VG_WAY_ASYNC] = "cuMemAllocAsync", [VG_WAY_POOL] = "cuMemAllocFromPoolAsync",
	[VG_WAY_VMM] = "cuMemCreate", [VG_WAY_GRAPH] = "a graph", [VG_WAY_IMPORT] = "an import",
	[VG_WAY_MODULE] = "a module",
};

static CUresult vg_refuse(struct vg_state *state, uint32_t device, uint32_t way, uint64_t bytes)
{
	uint64_t limit = vg_limits_memory(&state->pages, device);
	uint64_t used = vg_usage_memory(&state->pages, device);

	vg_reserve_refused(&state->pages, device, way, bytes);
	vg_log(way == VG_WAY_CONTEXT ? VG_LOG_CONTEXT : VG_LOG_MEMORY,
	       "refused %llu MiB for %s: the container's limit on GPU %u is %llu MiB, of which %llu "
	       "MiB are used (further refusals are silent)",
	       (unsigned long long)(bytes / VG_MIB), vg_way_names[way], device,
	       (unsigned long long)(limit / VG_MIB), (unsigned long long)(used / VG_MIB));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

// vg_find_room reserves memory, and reports whether the limit has room. If the limit has no room,
// vg_find_room queries the agent, and then trims the process's pools.
static bool vg_find_room(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	if (vg_reserve_hold(&state->pages, device, bytes))
		return true;
	if (bytes > vg_limits_memory(&state->pages, device))
		return false;
	if (vg_audit_refusal(state) && vg_reserve_hold(&state->pages, device, bytes))
		return true;
	return vg_pool_held_trim(state, device) && vg_reserve_hold(&state->pages, device, bytes);
}

// vg_is_filed reports whether this way of allocating files an entry. Pools have records instead of
// entries.
static bool vg_is_filed(uint32_t way)
{
	return way != VG_WAY_ASYNC && way != VG_WAY_POOL && way != VG_WAY_GRAPH && way != VG_WAY_NONE;
}

// vg_claim_elsewhere logs and returns the error for a claim on a GPU that the pages do not contain.
static CUresult vg_claim_elsewhere(CUdevice device)
{
	int count = 0;

	if (VG_CALL(cuDeviceGetCount, &count) == CUDA_SUCCESS && (device < 0 || device >= count))
		return CUDA_ERROR_INVALID_DEVICE;
	vg_log(VG_LOG_MEMORY, "refused memory on device %d, which is not assigned to this container", device);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult vg_claim_start(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes)
{
	struct vg_state *state = vg_state_ready();
	int index = state ? vg_state_device(state, device) : -1;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (index < 0)
		return vg_claim_elsewhere(device);
	*claim = (struct vg_claim){
		.state = state, .device = (uint32_t)index, .way = way, .bytes = bytes,
	};
	if (vg_is_filed(way)) {
		claim->entry = calloc(1, sizeof *claim->entry);
		if (!claim->entry)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	vg_audit(state, bytes);
	return CUDA_SUCCESS;
}

// vg_claim_open opens the claim, after which the caller may call the driver.
static void vg_claim_open(struct vg_claim *claim)
{
	vg_calls_begin(claim->state);
	claim->open = true;
}

// vg_claim_over ends the claim, unless the claim is already over.
static void vg_claim_over(struct vg_claim *claim)
{
	if (claim->open)
		vg_calls_end(claim->state);
	claim->open = false;
	claim->entry = NULL;
}

static void vg_claim_forget(struct vg_claim *claim)
{
	free(claim->entry);
	vg_claim_over(claim);
}

// vg_claim_less subtracts the amount that is already charged from the claim. vg_claim_more undoes
// the subtraction.
static void vg_claim_less(struct vg_claim *claim)
{
	if (claim->way == VG_WAY_CONTEXT)
		claim->again = vg_correction_context_again(claim->state, claim->device, claim->bytes);
	claim->bytes -= claim->again;
}

static void vg_claim_more(struct vg_claim *claim)
{
	if (claim->again)
		vg_correction_context_failed(claim->state, claim->device, claim->again);
	claim->again = 0;
}

// vg_claim_try claims memory. If the limit has no room, vg_claim_try sets *refused, and does not
// report the refusal.
static CUresult vg_claim_try(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes,
			     bool *refused)
{
	CUresult result = vg_claim_start(claim, device, way, bytes);

	*refused = false;
	if (result)
		return result;
	vg_claim_less(claim);
	if (claim->bytes == 0 || vg_find_room(claim->state, claim->device, claim->bytes)) {
		vg_claim_open(claim);
		return CUDA_SUCCESS;
	}
	*refused = true;
	vg_claim_more(claim);
	vg_claim_forget(claim);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vg_claim_unless(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes,
			 bool (*unless)(struct vg_state *state, CUdevice device), bool *needless)
{
	bool refused;
	CUresult result = vg_claim_try(claim, device, way, bytes, &refused);

	*needless = refused && unless && unless(claim->state, device);
	return refused && !*needless ? vg_refuse(claim->state, claim->device, way, bytes) : result;
}

CUresult vg_claim_on(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes)
{
	bool needless;

	return vg_claim_unless(claim, device, way, bytes, NULL, &needless);
}

CUresult vg_claim_at_once(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes)
{
	CUresult result = vg_claim_start(claim, device, way, bytes);

	if (result)
		return result;
	if (vg_reserve_hold_at_once(&claim->state->pages, claim->device, bytes)) {
		vg_claim_open(claim);
		return CUDA_SUCCESS;
	}
	vg_claim_forget(claim);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vg_claim_current(struct vg_claim *claim, uint32_t way, uint64_t bytes)
{
	CUdevice device;
	CUresult result;

	if (!vg_state_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuCtxGetDevice, &device);
	return result ? result : vg_claim_on(claim, device, way, bytes);
}

void vg_claim_void(struct vg_claim *claim)
{
	vg_reserve_settle(&claim->state->pages, claim->device, claim->bytes, 0);
	claim->bytes = 0;
	vg_claim_more(claim);
	vg_claim_forget(claim);
}

CUresult vg_claim_refuse(struct vg_claim *claim, uint64_t bytes)
{
	vg_claim_void(claim);
	return vg_refuse(claim->state, claim->device, claim->way, bytes);
}

bool vg_claim_resize(struct vg_claim *claim, uint64_t bytes)
{
	if (bytes > claim->bytes) {
		if (!vg_find_room(claim->state, claim->device, bytes - claim->bytes))
			return false;
	} else {
		vg_reserve_settle(&claim->state->pages, claim->device, claim->bytes - bytes, 0);
	}
	claim->bytes = bytes;
	return true;
}

void vg_claim_settle(struct vg_claim *claim, enum vg_kind kind, uint64_t key, uint64_t context)
{
	vg_claim_settle_as(claim, kind, key, context, claim->bytes + claim->again);
}

void vg_claim_charge(struct vg_claim *claim, enum vg_kind kind)
{
	struct vg_state *state = claim->state;

	vg_reserve_settle(&state->pages, claim->device, claim->bytes, claim->bytes);
	if (vg_kind_is_estimate(kind))
		vg_correction_estimate_made(state, claim->device, claim->bytes);
	if (claim->way == VG_WAY_IMPORT)
		vg_correction_uncertain_made(state, claim->device, claim->bytes);
	if (vg_kind_is_context(kind)) {
		vg_correction_context_began(state, claim->device);
		vg_add(vg_state_context_bytes(state, claim->device), claim->bytes + claim->again);
	}
	claim->bytes = 0;
	claim->again = 0;
}

void vg_claim_settle_as(struct vg_claim *claim, enum vg_kind kind, uint64_t key, uint64_t context,
			uint64_t bytes)
{
	struct vg_entry *entry = claim->entry;

	entry->kind = kind;
	entry->key = key;
	entry->device = claim->device;
	entry->bytes = bytes;
	entry->context = context;
	vg_claim_charge(claim, kind);
	vg_table_put(&claim->state->table, entry);
	vg_claim_over(claim);
}

void vg_claim_end(struct vg_claim *claim)
{
	vg_claim_forget(claim);
}

