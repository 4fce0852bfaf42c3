// SPDX-License-Identifier: Apache-2.0

// This file handles primary contexts. The first thread that retains a primary context claims the
// context's memory. The thread files the context's entry when the driver has created the context.
// If two threads retain the context at once, both threads claim the memory. The second thread then
// releases its claim. For a moment, the context is charged twice. The entry counts the program's
// retains of the context. Before the release that will end the context, all entries of the context
// are removed from the table.
//
// A thread may retain a context while another thread releases the context for the last time.
// Charges of memory that ended with the context may then stay until the context's final end. The
// interposer cannot detect whether charges remain, and grants no credit until that end
// (correction.h).

#include "context.h"

#include <stdlib.h>

#include "driver/handle.h"
#include "memory/audit.h"
#include "memory/claim.h"
#include "memory/correction.h"
#include "memory/pool_lifetime.h"
#include "memory/release.h"

static bool vg_primary_active(CUdevice device)
{
	unsigned flags;
	int active = 0;

	return VG_CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

static struct vg_entry *vg_primary_join(struct vg_entry *entry, void *context)
{
	bool *filed = context;

	*filed = entry != NULL;
	if (entry)
		entry->count++;
	return entry;
}

// vg_primary_filed counts one more retain of a primary context, and reports whether the context has
// an entry.
static bool vg_primary_filed(struct vg_state *state, CUdevice device)
{
	bool filed = false;

	vg_table_with(&state->table, VG_PRIMARY, (uint64_t)device, vg_primary_join, &filed);
	return filed;
}

// vg_primary_put files the claim's entry. If the context already has an entry, vg_primary_put only
// counts a retain.
static struct vg_entry *vg_primary_put(struct vg_entry *entry, void *context)
{
	struct vg_claim *claim = context;

	if (entry) {
		entry->count++;
		return entry;
	}
	entry = claim->entry;
	claim->entry = NULL;
	return entry;
}

static void vg_primary_file(struct vg_claim *claim, CUdevice device, CUcontext context)
{
	struct vg_state *state = claim->state;

	*claim->entry = (struct vg_entry){.kind = VG_PRIMARY, .key = (uint64_t)device,
					  .device = claim->device, .bytes = claim->bytes + claim->again,
					  .extra = vg_handle_key(context), .count = 1};
	vg_table_with(&state->table, VG_PRIMARY, (uint64_t)device, vg_primary_put, claim);
	if (claim->entry) {
		vg_claim_void(claim);
		return;
	}
	vg_claim_charge(claim, VG_PRIMARY);
	vg_claim_end(claim);
}

// vg_primary_leave counts a release. A release that may end the context removes the entry.
static struct vg_entry *vg_primary_leave(struct vg_entry *entry, void *context)
{
	struct vg_entry **last = context;

	if (entry && entry->count > 1) {
		entry->count--;
		return entry;
	}
	*last = entry;
	return NULL;
}

// vg_primary_back restores the entry of a context that still exists, with `count` retains.
static void vg_primary_back(struct vg_state *state, struct vg_entry *primary, uint64_t count)
{
	primary->count = count;
	if (!vg_table_put_new(&state->table, primary))
		vg_release(state, primary); // another thread has filed an entry meanwhile
}

// vg_primary_ended releases the charges that ended with a primary context.
static void vg_primary_ended(struct vg_state *state, const struct vg_entry *primary,
			     struct vg_entry *entries)
{
	vg_pool_lifetime_context_ended(state, primary->device);
	vg_context_drop(state, (CUcontext)(uintptr_t)primary->extra, entries);
}

// vg_primary_after releases the charges that ended with a call, or restores the entries.
static void vg_primary_after(struct vg_state *state, CUdevice device, struct vg_entry *primary,
			     struct vg_entry *entries, CUresult result)
{
	if (result || vg_primary_active(device)) {
		if (!result && entries)
			vg_correction_doubt(state, primary->device);
		vg_context_keep(state, (CUcontext)(uintptr_t)primary->extra, entries);
		vg_primary_back(state, primary, result ? 1 : 0);
		return;
	}
	vg_primary_ended(state, primary, entries);
	vg_release(state, primary);
}

// vg_primary_joins returns a GPU's counter of threads whose counted retain may not have reached the
// driver. vg_primary_joins returns NULL if the container does not have that GPU.
static _Atomic uint32_t *vg_primary_joins(struct vg_state *state, CUdevice device)
{
	int index = vg_state_device(state, device);

	return index < 0 ? NULL : &state->primary_joins[index];
}

// vg_primary_joining reports whether a counted retain may not have reached the driver. A release
// may then be the last release for the driver, but not the last release by the interposer's count.
static bool vg_primary_joining(struct vg_state *state, CUdevice device)
{
	const _Atomic uint32_t *joins = vg_primary_joins(state, device);

	return joins && atomic_load(joins);
}

// vg_primary_less makes a call of the driver that releases one retain and may end the context.
static CUresult vg_primary_less(struct vg_state *state, CUdevice device,
				CUresult (*end)(CUdevice device))
{
	struct vg_entry *primary = NULL;
	struct vg_entry *entries = NULL;
	bool joining;
	CUresult result;

	vg_audit_last(state);
	vg_calls_begin(state);
	vg_table_with(&state->table, VG_PRIMARY, (uint64_t)device, vg_primary_leave, &primary);
	if (primary)
		entries = vg_context_take(state, (CUcontext)(uintptr_t)primary->extra);
	joining = vg_primary_joining(state, device);
	result = end(device);
	if (primary)
		vg_primary_after(state, device, primary, entries, result);
	else if (result)
		vg_primary_filed(state, device);
	else if (joining)
		vg_correction_doubt(state, (uint32_t)vg_state_device(state, device));
	vg_calls_end(state);
	return result;
}

static CUresult vg_no_release(CUdevice device)
{
	(void)device;
	return CUDA_SUCCESS;
}

// vg_primary_again retains a primary context after vg_primary_filed has counted the retain.
static CUresult vg_primary_again(struct vg_state *state, CUcontext *context, CUdevice device)
{
	CUresult result = VG_CALL(cuDevicePrimaryCtxRetain, context, device);

	if (result)
		vg_primary_less(state, device, vg_no_release);
	return result;
}

static CUresult vg_primary_retain(struct vg_state *state, CUcontext *context, CUdevice device)
{
	struct vg_claim claim;
	bool needless;
	CUresult result;

	if (vg_primary_filed(state, device))
		return vg_primary_again(state, context, device);
	result = vg_claim_unless(&claim, device, VG_WAY_CONTEXT, vg_context_estimate(device),
				 vg_primary_filed, &needless);
	if (needless)
		return vg_primary_again(state, context, device);
	if (result)
		return result;
	result = VG_CALL(cuDevicePrimaryCtxRetain, context, device);
	if (result)
		vg_claim_void(&claim);
	else
		vg_primary_file(&claim, device, *context);
	return result;
}

VG_API(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device)
{
	struct vg_state *state = vg_state_ready();
	_Atomic uint32_t *joins;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	joins = vg_primary_joins(state, device);
	if (joins)
		atomic_fetch_add(joins, 1);
	result = vg_primary_retain(state, context, device);
	if (joins)
		atomic_fetch_sub(joins, 1);
	return result;
}

static CUresult vg_call_release(CUdevice device)
{
	return VG_CALL(cuDevicePrimaryCtxRelease, device);
}

static CUresult vg_call_release_v2(CUdevice device)
{
	return VG_CALL(cuDevicePrimaryCtxRelease_v2, device);
}

VG_API(cuDevicePrimaryCtxRelease, CUdevice device)
{
	struct vg_state *state = vg_state_ready();

	return state ? vg_primary_less(state, device, vg_call_release) : vg_call_release(device);
}

VG_API(cuDevicePrimaryCtxRelease_v2, CUdevice device)
{
	struct vg_state *state = vg_state_ready();

	return state ? vg_primary_less(state, device, vg_call_release_v2) : vg_call_release_v2(device);
}

// vg_primary_reset resets a primary context. The driver frees all memory of the context. The
// context may still be retained, and the driver recreates a retained context at its next use.
static CUresult vg_primary_reset(CUdevice device, CUresult (*reset)(CUdevice device))
{
	struct vg_state *state = vg_state_ready();
	struct vg_entry *entries = NULL;
	struct vg_entry *primary;
	CUresult result;

	if (!state)
		return reset(device);
	vg_audit_last(state);
	vg_calls_begin(state);
	primary = vg_table_take(&state->table, VG_PRIMARY, (uint64_t)device);
	if (primary)
		entries = vg_context_take(state, (CUcontext)(uintptr_t)primary->extra);
	result = reset(device);
	if (primary && !result && vg_primary_active(device)) {
		vg_primary_ended(state, primary, entries);
		vg_primary_back(state, primary, primary->count);
	} else if (primary) {
		vg_primary_after(state, device, primary, entries, result);
	}
	vg_calls_end(state);
	return result;
}

static CUresult vg_call_reset(CUdevice device)
{
	return VG_CALL(cuDevicePrimaryCtxReset, device);
}

static CUresult vg_call_reset_v2(CUdevice device)
{
	return VG_CALL(cuDevicePrimaryCtxReset_v2, device);
}

VG_API(cuDevicePrimaryCtxReset, CUdevice device)
{
	return vg_primary_reset(device, vg_call_reset);
}

VG_API(cuDevicePrimaryCtxReset_v2, CUdevice device)
{
	return vg_primary_reset(device, vg_call_reset_v2);
}
