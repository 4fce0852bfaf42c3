// SPDX-License-Identifier: Apache-2.0

// This file handles contexts that a program creates. The agent measures the memory that a context
// takes, and writes the size on the limits page. The functions of this file hold no mutex during
// the driver's calls. A driver that creates a context opens libraries, whose constructors may use
// CUDA. A driver that ends a context waits for the GPU.

#include "context.h"

#include "driver/handle.h"
#include "memory/audit.h"
#include "memory/claim.h"

// VG_MAKE_CONTEXT is the body of a function that creates a context.
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
			vg_claim_settle(&claim_, VG_CONTEXT, vg_handle_key(*(context)), 0);  \
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

// vg_end_context calls `end`, and releases the context's entries if the context is gone.
static CUresult vg_end_context(CUcontext context, CUresult (*end)(CUcontext context),
			       bool (*is_gone)(CUcontext context))
{
	struct vg_state *state = vg_state_ready();
	struct vg_entry *entries;
	CUresult result;

	if (!state)
		return end(context);
	vg_audit_last(state);
	vg_calls_begin(state);
	entries = vg_context_take(state, context);
	result = end(context);
	if (!result && is_gone(context))
		vg_context_drop(state, context, entries);
	else
		vg_context_keep(state, context, entries);
	vg_calls_end(state);
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
