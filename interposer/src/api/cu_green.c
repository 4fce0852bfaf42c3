// SPDX-License-Identifier: Apache-2.0

// This file handles green contexts, which are parts of a primary context.

#include "context.h"
#include "cu_primary.h"
#include "driver/handle.h"
#include "memory/claim.h"
#include "memory/release.h"

// The interposer retains the primary context while the green context exists, so that the primary
// context has a separate charge. A green context has the same charge as any other context.
VG_API(cuGreenCtxCreate, CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
       unsigned flags)
{
	struct vg_claim claim;
	CUcontext primary;
	CUresult result = vg_cuDevicePrimaryCtxRetain(&primary, device);

	if (result)
		return result;
	result = vg_claim_on(&claim, device, VG_WAY_CONTEXT, vg_context_estimate(device));
	if (result)
		goto release;
	result = VG_CALL(cuGreenCtxCreate, green, resources, device, flags);
	if (result) {
		vg_claim_void(&claim);
		goto release;
	}
	claim.entry->extra = (uint64_t)device;
	vg_claim_settle(&claim, VG_GREEN, vg_handle_key(*green), 0);
	return CUDA_SUCCESS;
release:
	vg_cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

// vg_green_leave makes the memory that was allocated in a green context end with its primary context.
// vg_green_leave precedes the driver's call, because the driver may reuse the handle at once.
static void vg_green_leave(struct vg_state *state, CUgreenCtx green, CUdevice device)
{
	struct vg_entry primary;
	CUcontext context;

	if (VG_CALL(cuCtxFromGreenCtx, &context, green) == CUDA_SUCCESS &&
	    vg_table_get(&state->table, VG_PRIMARY, (uint64_t)device, &primary))
		vg_context_move(state, context, (CUcontext)(uintptr_t)primary.extra);
}

VG_API(cuGreenCtxDestroy, CUgreenCtx green)
{
	struct vg_state *state = vg_state_ready();
	struct vg_entry *entry;
	CUdevice device;
	CUresult result;

	if (!state)
		return VG_CALL(cuGreenCtxDestroy, green);
	entry = vg_release_begin(state, VG_GREEN, vg_handle_key(green));
	device = entry ? (CUdevice)entry->extra : -1;
	if (entry)
		vg_green_leave(state, green, device);
	result = VG_CALL(cuGreenCtxDestroy, green);
	vg_release_finish(state, entry, result);
	if (!result && device >= 0)
		vg_cuDevicePrimaryCtxRelease_v2(device);
	return result;
}
