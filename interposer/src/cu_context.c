// SPDX-License-Identifier: Apache-2.0

// Contexts that a program makes, and green ones. What one takes the agent has measured
// and written on the limits page. No mutex is held over the driver's calls: a driver
// opens libraries as it makes a context, whose constructors may use CUDA, and waits for
// the GPU as it ends one.

#include "context.h"

#include "audit.h"

uint64_t vg_context_estimate(CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	int index = state ? vg_device_index(state, device) : -1;
	uint64_t hint = index < 0 ? 0 : vg_context_hint(&state->pages, (uint32_t)index);

	return hint ? hint : VG_UNKNOWN_CONTEXT_BYTES;
}

// VG_MAKE_CONTEXT is the body of a function that makes a context.
#define VG_MAKE_CONTEXT(context, device, call)                                               \
	do {                                                                                 \
		struct vg_claim claim_;                                                      \
		CUresult result_ = vg_claim_on(&claim_, device, VG_WAY_CONTEXT,              \
					       vg_context_estimate(device));                 \
                                                                                             \
		if (result_)                                                                 \
			return result_;                                                      \
		result_ = call;                                                              \
		if (result_)                                                                 \
			vg_claim_void(&claim_);                                              \
		else                                                                         \
			vg_claim_settle(&claim_, VG_CONTEXT, vg_key(*(context)), 0);         \
		return result_;                                                              \
	} while (0)

VG_API(cuCtxCreate, CUcontext *context, unsigned flags, CUdevice device)
{
	VG_MAKE_CONTEXT(context, device, VG_CALL(cuCtxCreate, context, flags, device));
}

VG_API(cuCtxCreate_v2, CUcontext *context, unsigned flags, CUdevice device)
{
	VG_MAKE_CONTEXT(context, device, VG_CALL(cuCtxCreate_v2, context, flags, device));
}

VG_API(cuCtxCreate_v3, CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
	VG_MAKE_CONTEXT(context, device,
			VG_CALL(cuCtxCreate_v3, context, affinity, count, flags, device));
}

VG_API(cuCtxCreate_v4, CUcontext *context, void *params, unsigned flags, CUdevice device)
{
	VG_MAKE_CONTEXT(context, device, VG_CALL(cuCtxCreate_v4, context, params, flags, device));
}

VG_API(cuGLCtxCreate, CUcontext *context, unsigned flags, CUdevice device)
{
	VG_MAKE_CONTEXT(context, device, VG_CALL(cuGLCtxCreate, context, flags, device));
}

VG_API(cuGLCtxCreate_v2, CUcontext *context, unsigned flags, CUdevice device)
{
	VG_MAKE_CONTEXT(context, device, VG_CALL(cuGLCtxCreate_v2, context, flags, device));
}

VG_API(cuVDPAUCtxCreate, CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau,
       void *lookup)
{
	VG_MAKE_CONTEXT(context, device,
			VG_CALL(cuVDPAUCtxCreate, context, flags, device, vdpau, lookup));
}

VG_API(cuVDPAUCtxCreate_v2, CUcontext *context, unsigned flags, CUdevice device, uint32_t vdpau,
       void *lookup)
{
	VG_MAKE_CONTEXT(context, device,
			VG_CALL(cuVDPAUCtxCreate_v2, context, flags, device, vdpau, lookup));
}

// vg_end_context calls the driver and releases the context if it is gone.
static CUresult vg_end_context(CUcontext context, CUresult (*end)(CUcontext context),
			       bool (*is_gone)(CUcontext context))
{
	struct vg_state *state = vg_ready_state();
	struct vg_entry *entries;
	CUresult result;

	if (!state)
		return end(context);
	vg_audit_last(state);
	vg_begin(state);
	entries = vg_context_take(state, context);
	result = end(context);
	if (!result && is_gone(context))
		vg_context_drop(state, context, entries);
	else
		vg_context_keep(state, entries);
	vg_end(state);
	return result;
}

static bool vg_surely_gone(CUcontext context)
{
	(void)context;
	return true;
}

static bool vg_found_gone(CUcontext context)
{
	unsigned version;

	return VG_CALL(cuCtxGetApiVersion, context, &version) != CUDA_SUCCESS;
}

static CUresult vg_call_destroy(CUcontext context)
{
	return VG_CALL(cuCtxDestroy, context);
}

static CUresult vg_call_destroy_v2(CUcontext context)
{
	return VG_CALL(cuCtxDestroy_v2, context);
}

static CUresult vg_call_detach(CUcontext context)
{
	return VG_CALL(cuCtxDetach, context);
}

VG_API(cuCtxDestroy, CUcontext context)
{
	return vg_end_context(context, vg_call_destroy, vg_surely_gone);
}

VG_API(cuCtxDestroy_v2, CUcontext context)
{
	return vg_end_context(context, vg_call_destroy_v2, vg_surely_gone);
}

VG_API(cuCtxDetach, CUcontext context)
{
	return vg_end_context(context, vg_call_detach, vg_found_gone);
}

// ---- green contexts, which live in the primary context

// The primary context is retained for as long as the green one lives, so that
// what it takes is charged to it and not to the green one, which is taken to be as
// large as any.
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
	vg_claim_settle(&claim, VG_GREEN, vg_key(*green), 0);
	return CUDA_SUCCESS;
release:
	vg_cuDevicePrimaryCtxRelease_v2(device);
	return result;
}

VG_API(cuGreenCtxDestroy, CUgreenCtx green)
{
	struct vg_state *state = vg_ready_state();
	struct vg_entry *entry;
	CUdevice device;
	CUresult result;

	if (!state)
		return VG_CALL(cuGreenCtxDestroy, green);
	entry = vg_free_begin(state, VG_GREEN, vg_key(green));
	device = entry ? (CUdevice)entry->extra : -1;
	result = VG_CALL(cuGreenCtxDestroy, green);
	vg_free_finish(state, entry, result);
	if (!result && device >= 0)
		vg_cuDevicePrimaryCtxRelease_v2(device);
	return result;
}
