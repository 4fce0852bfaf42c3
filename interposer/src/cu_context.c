// SPDX-License-Identifier: Apache-2.0

// Contexts, each of which takes hundreds of MiB that are charged like any other
// memory. Making and ending them goes one at a time in a process: otherwise the
// end of one could be taken for that of another with the same handle.

#include <stdlib.h>

#include "measured.h"

// What a context takes where neither the page nor a measurement says.
static const uint64_t vg_default_context = 512 * VG_MIB;

// vg_context_estimate is what this process's last context took, or what another
// process of the container has for its own, or what is expected of any. Another's word
// is good for a claim alone: a context that cannot be measured is charged as any.
static struct vg_expected vg_context_estimate(CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	int index = state ? vg_device_index(state, device) : -1;
	uint64_t measured = index < 0 ? 0 : atomic_load(&state->context_bytes[index]);
	uint64_t hint = index < 0 ? 0 : vg_context_hint(&state->pages, (uint32_t)index);
	uint64_t seen = index < 0 ? 0 : vg_context_seen(&state->pages, (uint32_t)index);
	uint64_t any = hint ? hint : vg_default_context;

	if (measured)
		return vg_expect(measured);
	return (struct vg_expected){seen ? vg_max(seen, vg_least_context) : any, any};
}

// vg_green_estimate takes the first green context to be as large as any other:
// how large it is beside the primary one is seen when it has been made.
static struct vg_expected vg_green_estimate(CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	int index = state ? vg_device_index(state, device) : -1;
	uint64_t measured = index < 0 ? 0 : atomic_load(&state->green_bytes[index]);

	return measured ? vg_expect(measured) : vg_context_estimate(device);
}

// vg_context_made charges a new context with what it took. It returns false
// where that is more than the limit allows.
static bool vg_context_made(struct vg_measured *call, enum vg_kind kind, uint64_t key, uint64_t extra)
{
	struct vg_claim *claim = &call->claim;
	uint64_t bytes = vg_measured_grown(call);

	if (!vg_claim_resize(claim, bytes))
		return false;
	if (kind == VG_GREEN) {
		atomic_store(&claim->state->green_bytes[claim->device], bytes);
	} else {
		atomic_store(&claim->state->context_bytes[claim->device], bytes);
		vg_add(&vg_slot_device(&claim->state->pages, (uint32_t)claim->state->pages.slot,
				       claim->device)->context_bytes, bytes);
	}
	claim->entry->extra = extra;
	vg_claim_settle(claim, kind, key, 0);
	return true;
}

// vg_context_finish ends the making of a context that belongs to the caller.
static CUresult vg_context_finish(struct vg_measured *call, CUresult result, CUcontext *context)
{
	if (result) {
		vg_claim_void(&call->claim);
	} else if (!vg_context_made(call, VG_CONTEXT, vg_key(*context), 0)) {
		VG_CALL(cuCtxDestroy_v2, *context);
		result = vg_claim_refuse(&call->claim, call->claim.bytes);
	}
	vg_measured_end(call);
	return result;
}

// VG_MAKE_CONTEXT is the body of a function that makes a context.
#define VG_MAKE_CONTEXT(context, device, call)                                         \
	do {                                                                           \
		struct vg_measured making_;                                            \
		CUresult result_ = vg_measured_begin(&making_, device, VG_WAY_CONTEXT, \
						     vg_context_estimate(device));     \
                                                                                       \
		if (result_)                                                           \
			return result_;                                                \
		return vg_context_finish(&making_, call, context);                     \
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
	CUresult result;

	if (!state)
		return end(context);
	vg_lock(&state->contexts);
	result = end(context);
	if (!result && is_gone(context))
		vg_drop_context(state, context);
	vg_unlock(&state->contexts);
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

// ---- primary contexts

static bool vg_primary_active(CUdevice device)
{
	unsigned flags;
	int active = 0;

	return VG_CALL(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active;
}

static CUresult vg_primary_start(CUcontext *context, CUdevice device)
{
	struct vg_measured call;
	CUresult result = vg_measured_begin(&call, device, VG_WAY_CONTEXT, vg_context_estimate(device));

	if (result)
		return result;
	result = VG_CALL(cuDevicePrimaryCtxRetain, context, device);
	if (result) {
		vg_claim_void(&call.claim);
	} else if (!vg_context_made(&call, VG_PRIMARY, (uint64_t)device, vg_key(*context))) {
		VG_CALL(cuDevicePrimaryCtxRelease_v2, device);
		result = vg_claim_refuse(&call.claim, call.claim.bytes);
	}
	vg_measured_end(&call);
	return result;
}

VG_API(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	// Of two threads at once, the one that comes second finds it active.
	vg_lock(&state->primary);
	if (vg_primary_active(device))
		result = VG_CALL(cuDevicePrimaryCtxRetain, context, device);
	else
		result = vg_primary_start(context, device);
	vg_unlock(&state->primary);
	return result;
}

static void vg_primary_drop(struct vg_state *state, CUdevice device)
{
	struct vg_entry *entry = vg_table_take(&state->table, VG_PRIMARY, (uint64_t)device);

	if (!entry)
		return;
	vg_drop_context(state, (CUcontext)(uintptr_t)entry->extra);
	vg_drop(state, entry);
}

// vg_primary_end calls the driver and releases the primary context if that
// ended it.
static CUresult vg_primary_end(CUdevice device, CUresult (*end)(CUdevice device))
{
	struct vg_state *state = vg_ready_state();
	CUresult result;

	if (!state)
		return end(device);
	vg_lock(&state->primary);
	vg_lock(&state->contexts);
	result = end(device);
	if (!result && !vg_primary_active(device))
		vg_primary_drop(state, device);
	vg_unlock(&state->contexts);
	vg_unlock(&state->primary);
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
	return vg_primary_end(device, vg_call_release);
}

VG_API(cuDevicePrimaryCtxRelease_v2, CUdevice device)
{
	return vg_primary_end(device, vg_call_release_v2);
}

// vg_primary_reset: all that the context had is gone, but it may be retained
// still, and then begins anew with its first use.
static CUresult vg_primary_reset(CUdevice device, CUresult (*reset)(CUdevice device))
{
	struct vg_state *state = vg_ready_state();
	struct vg_entry entry;
	CUresult result;

	if (!state)
		return reset(device);
	vg_lock(&state->primary);
	vg_lock(&state->contexts);
	result = reset(device);
	if (!result && vg_table_get(&state->table, VG_PRIMARY, (uint64_t)device, &entry)) {
		if (vg_primary_active(device))
			vg_drop_context(state, (CUcontext)(uintptr_t)entry.extra);
		else
			vg_primary_drop(state, device);
	}
	vg_unlock(&state->contexts);
	vg_unlock(&state->primary);
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

// ---- green contexts, which live in the primary context

// The primary context is retained for as long as the green one lives, so that
// what it takes is charged to it and not to the green one.
VG_API(cuGreenCtxCreate, CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
       unsigned flags)
{
	struct vg_measured call;
	CUcontext primary;
	CUresult result = vg_cuDevicePrimaryCtxRetain(&primary, device);

	if (result)
		return result;
	result = vg_measured_begin(&call, device, VG_WAY_CONTEXT, vg_green_estimate(device));
	if (result)
		goto release;
	result = VG_CALL(cuGreenCtxCreate, green, resources, device, flags);
	if (result) {
		vg_claim_void(&call.claim);
	} else if (!vg_context_made(&call, VG_GREEN, vg_key(*green), (uint64_t)device)) {
		VG_CALL(cuGreenCtxDestroy, *green);
		result = vg_claim_refuse(&call.claim, call.claim.bytes);
	}
	vg_measured_end(&call);
release:
	if (result)
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

// ---- what a context holds for kernels, which a program can enlarge

// Where the driver's rounding is not known, its largest.
static const uint64_t vg_heap_granule = 2 * VG_MIB;

// vg_heap_key is the context with the limit in the bits that are no address.
static uint64_t vg_heap_key(uint64_t context, int limit)
{
	return context | (uint64_t)(limit + 1) << 48;
}

// vg_heap_unit is how many bytes of the device one byte of the limit takes: a
// stack is there for each thread that the GPU can hold at a time.
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

// vg_heap_charge claims what the limit grows by above its first value, which is
// part of the context. The driver may take it later, when a kernel needs it. The
// caller holds state->contexts: of two threads that set it at once, one goes by what
// the other has left, and the context stays.
static CUresult vg_heap_charge(struct vg_state *state, int limit, size_t value)
{
	uint64_t context = vg_current_context();
	struct vg_entry *old = vg_table_take(&state->table, VG_HEAP, vg_heap_key(context, limit));
	size_t first = 0;
	struct vg_claim claim;
	CUresult result = VG_CALL(cuCtxGetLimit, &first, limit);
	uint64_t had = old ? old->bytes : 0;
	uint64_t bytes;

	if (old)
		first = (size_t)old->extra;
	// What a larger value took before may not come back before the context ends.
	bytes = vg_max(had, result ? 0 : vg_heap_bytes(limit, first, value));
	if (!result)
		result = vg_claim_current(&claim, VG_WAY_CONTEXT, bytes - had);
	if (!result) {
		result = VG_CALL(cuCtxSetLimit, limit, value);
		if (result)
			vg_claim_void(&claim);
	}
	if (result) {
		if (old)
			vg_table_put(&state->table, old);
		return result;
	}
	claim.entry->extra = first;
	vg_claim_settle_as(&claim, VG_HEAP, vg_heap_key(context, limit), context, bytes);
	free(old);
	return result;
}

VG_API(cuCtxSetLimit, int limit, size_t value)
{
	struct vg_state *state = vg_ready_state();
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (limit != CU_LIMIT_STACK_SIZE && limit != CU_LIMIT_MALLOC_HEAP_SIZE &&
	    limit != CU_LIMIT_PRINTF_FIFO_SIZE)
		return VG_CALL(cuCtxSetLimit, limit, value);
	vg_lock(&state->contexts);
	result = vg_heap_charge(state, limit, value);
	vg_unlock(&state->contexts);
	return result;
}
