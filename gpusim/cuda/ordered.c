// SPDX-License-Identifier: Apache-2.0
/* This file implements allocations in stream order. */
#include "pool.h"
#include "queue.h"

static CUresult alloc_from(struct sim_pool *pool, size_t size, CUstream handle, bool ptds,
			   CUdeviceptr *address)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	if (!address || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capturing(stream))
		return sim_capture_alloc(stream, size, address);
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	if (!pool) {
		err = sim_pool_current(stream->context->device, &pool);
		if (err)
			return err;
	}
	sim_lock();
	err = sim_pool_alloc(pool, size, address);
	sim_unlock();
	return err;
}

CU_PTSZ(cuMemAllocAsync, (CUdeviceptr *address, size_t size, CUstream stream),
	alloc_from(NULL, size, stream, ptds, address))

static CUresult alloc_from_pool(CUmemoryPool handle, size_t size, CUstream stream, bool ptds,
				CUdeviceptr *address)
{
	struct sim_pool *pool;
	CUresult err = sim_pool_of(handle, &pool);

	if (err)
		return err;
	return pool->imported ? CUDA_ERROR_INVALID_VALUE : alloc_from(pool, size, stream, ptds, address);
}

CU_PTSZ(cuMemAllocFromPoolAsync,
	(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream),
	alloc_from_pool(pool, size, stream, ptds, address))

static CUresult free_async(CUdeviceptr address, CUstream handle, bool ptds)
{
	struct sim_stream *stream;
	struct sim_alloc *alloc;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	if (sim_capturing(stream))
		return sim_capture_free(stream, address);
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_exact(address);
	if (!alloc || (alloc->kind != ALLOC_POOL && alloc->kind != ALLOC_LINEAR && alloc->kind != ALLOC_GRAPH))
		err = CUDA_ERROR_INVALID_VALUE;
	else
		sim_alloc_free(alloc);
	sim_unlock();
	return err;
}

CU_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_async(address, stream, ptds))
