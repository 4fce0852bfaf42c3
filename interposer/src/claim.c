// SPDX-License-Identifier: Apache-2.0

#include "claim.h"

#include <stdlib.h>

#include "audit.h"
#include "correction.h"
#include "linear.h"
#include "pool.h"
#include "reserve.h"
#include "time/throttle.h"
#include "use.h"

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
	uint64_t limit = vg_memory_limit(&state->pages, device);
	uint64_t used = vg_memory_used(&state->pages, device);

	vg_refused(&state->pages, device, way, bytes);
	vg_say(way == VG_WAY_CONTEXT ? VG_SAY_CONTEXT : VG_SAY_MEMORY,
	       "refused %llu MiB for %s: the container's limit on GPU %u is %llu MiB, of which %llu "
	       "MiB are used (further refusals are silent)",
	       (unsigned long long)(bytes / VG_MIB), vg_way_names[way], device,
	       (unsigned long long)(limit / VG_MIB), (unsigned long long)(used / VG_MIB));
	return CUDA_ERROR_OUT_OF_MEMORY;
}

// vg_find_room holds memory. Where that fails, it has the agent measure whether this
// process is charged with too much, and gets back what its pools hold for later.
static bool vg_find_room(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	if (vg_hold(&state->pages, device, bytes))
		return true;
	if (bytes > vg_memory_limit(&state->pages, device))
		return false;
	if (vg_audit_refusal(state) && vg_hold(&state->pages, device, bytes))
		return true;
	return vg_pools_trim(state, device) && vg_hold(&state->pages, device, bytes);
}

// vg_is_filed: what pools take is in their own records.
static bool vg_is_filed(uint32_t way)
{
	return way != VG_WAY_ASYNC && way != VG_WAY_POOL && way != VG_WAY_GRAPH && way != VG_WAY_NONE;
}

// vg_claim_elsewhere is the answer to a claim on a GPU that the pages do not have.
static CUresult vg_claim_elsewhere(CUdevice device)
{
	int count = 0;

	if (VG_CALL(cuDeviceGetCount, &count) == CUDA_SUCCESS && (device < 0 || device >= count))
		return CUDA_ERROR_INVALID_DEVICE;
	vg_say(VG_SAY_MEMORY, "refused memory on device %d, which was not given to this container", device);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult vg_claim_start(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes)
{
	struct vg_state *state = vg_ready_state();
	int index = state ? vg_device_index(state, device) : -1;

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

// vg_claim_open: from here on the driver may be called.
static void vg_claim_open(struct vg_claim *claim)
{
	vg_begin(claim->state);
	claim->open = true;
}

// vg_claim_over ends the claim, if it is not over yet.
static void vg_claim_over(struct vg_claim *claim)
{
	if (claim->open)
		vg_end(claim->state);
	claim->open = false;
	claim->entry = NULL;
}

static void vg_claim_forget(struct vg_claim *claim)
{
	free(claim->entry);
	vg_claim_over(claim);
}

// vg_claim_less takes off the claim what is charged already; vg_claim_more undoes that.
static void vg_claim_less(struct vg_claim *claim)
{
	if (claim->way == VG_WAY_CONTEXT)
		claim->again = vg_context_again(claim->state, claim->device, claim->bytes);
	claim->bytes -= claim->again;
}

static void vg_claim_more(struct vg_claim *claim)
{
	if (claim->again)
		vg_context_failed(claim->state, claim->device, claim->again);
	claim->again = 0;
}

// vg_claim_try claims, but does not report that there was no room: *refused is true then.
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
	if (vg_hold_at_once(&claim->state->pages, claim->device, bytes)) {
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

	if (!vg_ready_state())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuCtxGetDevice, &device);
	return result ? result : vg_claim_on(claim, device, way, bytes);
}

void vg_claim_void(struct vg_claim *claim)
{
	vg_settle(&claim->state->pages, claim->device, claim->bytes, 0);
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
		vg_settle(&claim->state->pages, claim->device, claim->bytes - bytes, 0);
	}
	claim->bytes = bytes;
	return true;
}

void vg_claim_settle(struct vg_claim *claim, enum vg_kind kind, uint64_t key, uint64_t context)
{
	vg_claim_settle_as(claim, kind, key, context, claim->bytes + claim->again);
}

// vg_is_estimate: nobody but the driver knows what these take.
static bool vg_is_estimate(enum vg_kind kind)
{
	return kind == VG_MODULE || kind == VG_CODE || kind == VG_CONTEXT || kind == VG_PRIMARY ||
	       kind == VG_GREEN || kind == VG_GRANULE;
}

static bool vg_is_context(enum vg_kind kind)
{
	return kind == VG_CONTEXT || kind == VG_PRIMARY || kind == VG_GREEN;
}

static uint64_t *vg_contexts_bytes(struct vg_state *state, uint32_t device)
{
	return &vg_slot_device(&state->pages, (uint32_t)state->pages.slot, device)->context_bytes;
}

void vg_claim_charge(struct vg_claim *claim, enum vg_kind kind)
{
	struct vg_state *state = claim->state;

	vg_settle(&state->pages, claim->device, claim->bytes, claim->bytes);
	if (vg_is_estimate(kind))
		vg_estimate_made(state, claim->device, claim->bytes);
	if (claim->way == VG_WAY_IMPORT)
		vg_uncertain_made(state, claim->device, claim->bytes);
	if (vg_is_context(kind)) {
		vg_context_began(state, claim->device);
		vg_add(vg_contexts_bytes(state, claim->device), claim->bytes + claim->again);
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

bool vg_location_device(const CUmemLocation *location, CUdevice *device)
{
	*device = location->id;
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return true;
	if (VG_CALL(cuCtxGetDevice, device))
		*device = 0;
	return location->type < CU_MEM_LOCATION_TYPE_HOST ||
	       location->type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

uint64_t vg_current_context(void)
{
	CUcontext context = NULL;

	return VG_CALL(cuCtxGetCurrent, &context) == CUDA_SUCCESS ? vg_key(context) : 0;
}

// vg_drop_in releases an entry; `ended`: its context has ended, and the driver keeps
// nothing of it.
static void vg_drop_in(struct vg_state *state, struct vg_entry *entry, bool ended)
{
	uint64_t withdrawn = 0;

	if (entry->kind == VG_LINEAR)
		vg_linear_forget(state, entry, ended);
	if (entry->kind == VG_GRANULE)
		atomic_fetch_sub(&state->retained[entry->device], entry->bytes);
	if (vg_is_context(entry->kind))
		withdrawn = vg_context_ended(state, entry->device, entry->bytes, entry->kind != VG_GREEN);
	else if (vg_is_estimate(entry->kind))
		withdrawn = vg_estimate_gone(state, entry->device, entry->bytes);
	if (entry->kind == VG_HEAP || entry->kind == VG_IMPORT)
		vg_uncertain_gone(state, entry->device, entry->bytes);
	vg_release(&state->pages, entry->device, entry->bytes - withdrawn);
	if (vg_is_context(entry->kind))
		vg_sub(vg_contexts_bytes(state, entry->device), entry->bytes);
	free(entry);
}

void vg_drop(struct vg_state *state, struct vg_entry *entry)
{
	vg_drop_in(state, entry, false);
}

struct vg_entry *vg_free_begin(struct vg_state *state, enum vg_kind kind, uint64_t key)
{
	struct vg_entry *entry = state ? vg_table_take(&state->table, kind, key) : NULL;

	if (entry)
		vg_begin(state);
	return entry;
}

void vg_free_finish(struct vg_state *state, struct vg_entry *entry, CUresult result)
{
	if (!entry) {
		// It may be a pool's, which keeps it or returns it later.
		if (state && !atomic_load_explicit(&state->stale_pools, memory_order_relaxed))
			atomic_store(&state->stale_pools, 1);
		return;
	}
	if (result == CUDA_SUCCESS)
		vg_drop(state, entry);
	else
		vg_table_put(&state->table, entry);
	vg_end(state);
}

static bool vg_belongs(const struct vg_entry *entry, const void *context)
{
	uint64_t key = vg_key(context);

	if (entry->kind == VG_GRANULE && entry->count)
		return false; // in use, perhaps by another context
	return entry->context == key || (entry->kind == VG_CONTEXT && entry->key == key);
}

struct vg_entry *vg_context_take(struct vg_state *state, CUcontext context)
{
	// Nobody is to ask the driver for its streams and events while it ends.
	if (context)
		vg_throttle_drop_context(state, context);
	// What no context owns has none for its key: it must not go with none.
	return context ? vg_table_sweep(&state->table, vg_belongs, context) : NULL;
}

void vg_context_keep(struct vg_state *state, struct vg_entry *entries)
{
	while (entries) {
		struct vg_entry *next = entries->next;

		vg_table_put(&state->table, entries);
		entries = next;
	}
}

void vg_context_drop(struct vg_state *state, CUcontext context, struct vg_entry *entries)
{
	struct vg_entry *own = NULL;

	vg_throttle_drop_context(state, context);
	vg_uses_forget(state);
	while (entries) {
		struct vg_entry *next = entries->next;

		if (vg_is_context(entries->kind))
			own = entries;
		else
			vg_drop_in(state, entries, true);
		entries = next;
	}
	if (own)
		vg_drop_in(state, own, true);
	vg_pools_refresh(state);
}
