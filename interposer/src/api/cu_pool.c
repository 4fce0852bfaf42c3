// SPDX-License-Identifier: Apache-2.0

// This file handles stream-ordered allocation, from a device's pool and from pools that a program
// creates. A stream under capture allocates nothing: the allocation becomes a node of a graph,
// which cu_graph.c charges.

#include "driver/capture.h"
#include "driver/stream.h"
#include "load/capture_count.h"
#include "memory/audit.h"
#include "memory/claim.h"
#include "memory/pointer.h"
#include "memory/pool.h"
#include "memory/pool_claim.h"
#include "memory/pool_destroyed.h"
#include "memory/pool_held.h"
#include "memory/pool_lifetime.h"
#include "memory/release.h"
#include "time/watch.h"

// vg_ordered has the arguments of one stream-ordered allocation.
struct vg_ordered {
	CUdeviceptr *address;
	size_t bytes;
	CUmemoryPool pool; // NULL: the device's current pool
	CUstream stream;
	bool per_thread;
	uint32_t way;
};

static CUresult vg_ordered_call(const struct vg_ordered *call)
{
	if (call->pool)
		return call->per_thread ?
			       VG_CALL(cuMemAllocFromPoolAsync_ptsz, call->address, call->bytes,
				       call->pool, call->stream) :
			       VG_CALL(cuMemAllocFromPoolAsync, call->address, call->bytes, call->pool,
				       call->stream);
	return call->per_thread ? VG_CALL(cuMemAllocAsync_ptsz, call->address, call->bytes, call->stream) :
				  VG_CALL(cuMemAllocAsync, call->address, call->bytes, call->stream);
}

static CUresult vg_ordered_free(const struct vg_ordered *call)
{
	return call->per_thread ? VG_CALL(cuMemFreeAsync_ptsz, *call->address, call->stream) :
				  VG_CALL(cuMemFreeAsync, *call->address, call->stream);
}

static CUresult vg_ordered_undo(struct vg_claim *claim, const struct vg_ordered *call)
{
	struct vg_pool_piece piece = vg_pool_destroyed_find(claim->state, *call->address);

	if (!vg_ordered_free(call) && piece.pool)
		vg_pool_destroyed_freed(claim->state, &piece);
	else
		vg_pool_destroyed_kept(claim->state, &piece);
	if (call->per_thread)
		VG_CALL(cuStreamSynchronize_ptsz, call->stream);
	else
		VG_CALL(cuStreamSynchronize, call->stream);
	vg_pool_held_trim(claim->state, claim->device);
	return vg_claim_refuse(claim, call->bytes);
}

// vg_ordered_captured allocates on a stream under capture, which takes no memory. If another thread
// ends the capture before the driver's call, the pool grows, and vg_ordered_captured charges the
// growth.
static CUresult vg_ordered_captured(struct vg_state *state, const struct vg_ordered *call)
{
	CUmemoryPool handle = call->pool;
	CUresult result = vg_ordered_call(call);
	struct vg_pool *pool;
	struct vg_claim claim;
	CUdevice device;

	if (result || vg_capture_ask(call->stream, call->per_thread) == vg_is_capturing ||
	    vg_stream_device(call->stream, &device) ||
	    (!handle && VG_CALL(cuDeviceGetMemPool, &handle, device)))
		return result;
	pool = vg_pool_of(state, handle, device);
	if (!pool || pool->on_host || vg_pool_claim(&claim, pool, call->way, 0))
		return result;
	vg_pool_claim_asked(&claim, call->bytes);
	return vg_pool_claim_settle(&claim, result) ? result : vg_ordered_undo(&claim, call);
}

static CUresult vg_ordered_alloc(const struct vg_ordered *call)
{
	struct vg_state *state = vg_state_ready();
	CUmemoryPool handle = call->pool;
	struct vg_pool *pool;
	struct vg_claim claim;
	CUdevice device;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (vg_capture_count_maybe() && vg_capture_ask(call->stream, call->per_thread) == vg_is_capturing)
		return vg_ordered_captured(state, call);
	result = vg_stream_device(call->stream, &device);
	if (!result && !handle)
		result = VG_CALL(cuDeviceGetMemPool, &handle, device);
	if (result)
		return result;
	pool = vg_pool_of(state, handle, device);
	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (pool->on_host)
		return vg_ordered_call(call);
	result = vg_pool_claim(&claim, pool, call->way, call->bytes);
	if (result)
		return result;
	result = vg_ordered_call(call);
	if (!vg_pool_claim_settle(&claim, result) && !result)
		return vg_ordered_undo(&claim, call);
	return result;
}

VG_API(cuMemAllocAsync, CUdeviceptr *address, size_t bytes, CUstream stream)
{
	return vg_ordered_alloc(&(struct vg_ordered){.address = address, .bytes = bytes,
						     .stream = stream, .way = VG_WAY_ASYNC});
}

VG_API(cuMemAllocAsync_ptsz, CUdeviceptr *address, size_t bytes, CUstream stream)
{
	return vg_ordered_alloc(&(struct vg_ordered){.address = address, .bytes = bytes,
						     .stream = stream, .per_thread = true,
						     .way = VG_WAY_ASYNC});
}

VG_API(cuMemAllocFromPoolAsync, CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
       CUstream stream)
{
	if (!pool)
		return VG_CALL(cuMemAllocFromPoolAsync, address, bytes, pool, stream);
	return vg_ordered_alloc(&(struct vg_ordered){.address = address, .bytes = bytes, .pool = pool,
						     .stream = stream, .way = VG_WAY_POOL});
}

VG_API(cuMemAllocFromPoolAsync_ptsz, CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
       CUstream stream)
{
	if (!pool)
		return VG_CALL(cuMemAllocFromPoolAsync_ptsz, address, bytes, pool, stream);
	return vg_ordered_alloc(&(struct vg_ordered){.address = address, .bytes = bytes, .pool = pool,
						     .stream = stream, .per_thread = true,
						     .way = VG_WAY_POOL});
}

static CUresult vg_ordered_give(CUdeviceptr address, CUstream stream, bool per_thread)
{
	struct vg_state *state = vg_state_ready();
	bool captured = vg_capture_is_on(stream, per_thread);
	struct vg_entry *entry = captured ? NULL : vg_release_begin(state, VG_LINEAR, address);
	struct vg_entry *pointer = entry ? NULL : vg_pointer_take(state, address);
	struct vg_pool_piece piece = vg_pool_destroyed_find(state, address);
	bool later = (piece.pool || pointer) && !captured;
	CUresult result = per_thread ? VG_CALL(cuMemFreeAsync_ptsz, address, stream) :
				       VG_CALL(cuMemFreeAsync, address, stream);

	if (piece.pool && later && !result)
		vg_pool_destroyed_freed_in(state, &piece, stream, per_thread);
	else
		vg_pool_destroyed_kept(state, &piece);
	vg_pointer_freed_async(state, pointer, later && !result, stream, per_thread);
	vg_release_finish(state, entry, result);
	return result;
}

VG_API(cuMemFreeAsync, CUdeviceptr address, CUstream stream)
{
	return vg_ordered_give(address, stream, false);
}

VG_API(cuMemFreeAsync_ptsz, CUdeviceptr address, CUstream stream)
{
	return vg_ordered_give(address, stream, true);
}

VG_API(cuMemPoolCreate, CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	struct vg_state *state = vg_state_ready();
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuMemPoolCreate, pool, properties);
	if (!result)
		vg_pool_lifetime_made(state, *pool, properties);
	return result;
}

VG_API(cuMemPoolDestroy, CUmemoryPool pool)
{
	struct vg_state *state = vg_state_ready();
	uint64_t used = 0;
	struct vg_pool *ending;
	CUresult result;

	if (!state)
		return VG_CALL(cuMemPoolDestroy, pool);
	vg_calls_begin(state);
	ending = vg_pool_lifetime_ending(state, pool, &used);
	result = VG_CALL(cuMemPoolDestroy, pool);
	if (ending)
		vg_pool_lifetime_ended(state, ending, used, result);
	vg_calls_end(state);
	return result;
}

VG_API(cuMemPoolTrimTo, CUmemoryPool pool, size_t keep)
{
	struct vg_state *state = vg_state_ready();
	CUresult result = VG_CALL(cuMemPoolTrimTo, pool, keep);

	if (state)
		vg_pool_held_refresh(state);
	return result;
}

// vg_sync_begins queries the agent before a synchronisation, while the GPU works. A query after the
// program's wait would delay the program.
static void vg_sync_begins(void)
{
	struct vg_state *state = vg_state_ready();

	if (state)
		vg_audit_doubt(state);
}

// At a synchronisation, the driver frees memory that pools hold above their release threshold.
// Other processes of the container may be waiting for this memory.
static CUresult vg_synced(CUresult result)
{
	struct vg_state *state = vg_state_ready();

	if (state)
		vg_pool_held_refresh_stale(state);
	return result;
}

static CUresult vg_stream_synced(CUstream stream, bool per_thread, CUresult result)
{
	if (!result)
		vg_watch_stream_waited(stream, per_thread);
	return vg_synced(result);
}

static CUresult vg_context_synced(CUcontext context, CUresult result)
{
	if (!result)
		vg_watch_context_waited(context);
	return vg_synced(result);
}

VG_API(cuStreamSynchronize, CUstream stream)
{
	vg_sync_begins();
	vg_watch_stream(stream, false);
	return vg_stream_synced(stream, false, VG_CALL(cuStreamSynchronize, stream));
}

VG_API(cuStreamSynchronize_ptsz, CUstream stream)
{
	vg_sync_begins();
	vg_watch_stream(stream, true);
	return vg_stream_synced(stream, true, VG_CALL(cuStreamSynchronize_ptsz, stream));
}

VG_API(cuCtxSynchronize, void)
{
	vg_sync_begins();
	vg_watch_context(NULL);
	return vg_context_synced(NULL, VG_CALL(cuCtxSynchronize));
}

VG_API(cuCtxSynchronize_v2, CUcontext context)
{
	vg_sync_begins();
	vg_watch_context(context);
	return vg_context_synced(context, VG_CALL(cuCtxSynchronize_v2, context));
}

VG_API(cuEventSynchronize, CUevent event)
{
	CUresult result;
	int mode;

	vg_sync_begins();
	mode = vg_watch_event(event) ? vg_capture_relax() : -1;
	result = VG_CALL(cuEventSynchronize, event);
	vg_capture_unrelax(mode);
	if (!result)
		vg_watch_other_waited();
	return vg_synced(result);
}
