// SPDX-License-Identifier: Apache-2.0
/* This file implements the entry points of copies. */
#include "array.h"
#include "graph.h"

#include <string.h>

enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_ARRAY = 3, TYPE_UNIFIED = 4 };

static CUresult check(const CUDA_MEMCPY3D *p)
{
	struct sim_array *array;
	CUresult err = CUDA_SUCCESS;

	if (p->srcMemoryType < TYPE_HOST || p->srcMemoryType > TYPE_UNIFIED ||
	    p->dstMemoryType < TYPE_HOST || p->dstMemoryType > TYPE_UNIFIED)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->srcMemoryType == TYPE_ARRAY)
		err = sim_array_of(p->srcArray, &array);
	if (!err && p->dstMemoryType == TYPE_ARRAY)
		err = sim_array_of(p->dstArray, &array);
	return err;
}

/* copy queues a copy in a stream. A synchronous call waits for the copy's end. */
static CUresult copy(const CUDA_MEMCPY3D *p, CUstream handle, bool ptds, bool synchronous)
{
	struct sim_stream *stream;
	struct gs_work work;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err)
		err = p ? check(p) : CUDA_ERROR_INVALID_VALUE;
	if (!err && synchronous)
		err = sim_capture_guard();
	if (err)
		return err;
	if (sim_capturing(stream))
		return sim_capture_copy(stream, p);
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	work = sim_copy_work(stream->context->device, p);
	/* Copies within the device return before their end. */
	synchronous = synchronous && work.kind != GS_ITEM_COMPUTE;
	/* The call copies the content first, because the GPU has the work when the call returns. */
	if (!synchronous)
		sim_copy_content(p);
	err = sim_submit(stream, &work, NULL);
	if (err || !synchronous)
		return err;
	sim_wait_stream(stream);
	sim_copy_content(p);
	return sim_broken(stream->context->device);
}

static CUDA_MEMCPY3D line(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from, size_t size)
{
	return (CUDA_MEMCPY3D){
		.srcMemoryType = from_type, .srcDevice = from,
		.srcHost = (const void *)(uintptr_t)from,
		.dstMemoryType = to_type, .dstDevice = to,
		.dstHost = (void *)(uintptr_t)to,
		.WidthInBytes = size, .Height = 1, .Depth = 1,
	};
}

static CUresult copy_line(int to_type, CUdeviceptr to, int from_type, CUdeviceptr from, size_t size,
			  CUstream stream, bool ptds, bool synchronous)
{
	CUDA_MEMCPY3D p = line(to_type, to, from_type, from, size);

	return copy(&p, stream, ptds, synchronous);
}

static CUdeviceptr host(const void *pointer)
{
	return (CUdeviceptr)(uintptr_t)pointer;
}

#define H TYPE_HOST
#define D TYPE_DEVICE
#define U TYPE_UNIFIED

CU_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t size),
	copy_line(U, to, U, from, size, NULL, ptds, true))
CU_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
	copy_line(U, to, U, from, size, stream, ptds, false))
CU_PTDS(cuMemcpyPeer,
	(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t size),
	((void)to_ctx, (void)from_ctx, copy_line(D, to, D, from, size, NULL, ptds, true)))
CU_PTSZ(cuMemcpyPeerAsync,
	(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx, size_t size,
	 CUstream stream),
	((void)to_ctx, (void)from_ctx, copy_line(D, to, D, from, size, stream, ptds, false)))
CU_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size),
	copy_line(D, to, H, host(from), size, NULL, ptds, true))
CU_PTDS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size),
	copy_line(H, host(to), D, from, size, NULL, ptds, true))
CU_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t size),
	copy_line(D, to, D, from, size, NULL, ptds, true))
CU_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream),
	copy_line(D, to, H, host(from), size, stream, ptds, false))
CU_PTSZ(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream),
	copy_line(H, host(to), D, from, size, stream, ptds, false))
CU_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
	copy_line(D, to, D, from, size, stream, ptds, false))

CU_API CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned size)
{
	return copy_line(D, to, H, host(from), size, NULL, false, true);
}

CU_API CUresult cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned size)
{
	return copy_line(H, host(to), D, from, size, NULL, false, true);
}

CU_API CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned size)
{
	return copy_line(D, to, D, from, size, NULL, false, true);
}

/* ---- batches of lines ---- */

static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes,
			   size_t count, size_t *failed, CUstream stream, bool ptds)
{
	CUresult err = to && from && sizes && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (size_t i = 0; i < count && !err; i++) {
		err = copy_line(U, to[i], U, from[i], sizes[i], stream, ptds, false);
		if (err && failed)
			*failed = i;
	}
	return err;
}

CU_PTSZ(cuMemcpyBatchAsync,
	(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
	 size_t *indexes, size_t attribute_count, size_t *failed, CUstream stream),
	((void)attributes, (void)indexes, (void)attribute_count,
	 copy_batch(to, from, sizes, count, failed, stream, ptds)))
CU_PTSZ(cuMemcpyBatchAsync_v2,
	(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
	 size_t *indexes, size_t attribute_count, CUstream stream),
	((void)attributes, (void)indexes, (void)attribute_count,
	 copy_batch(to, from, sizes, count, NULL, stream, ptds)))

/* ---- arrays, a row at a time ---- */

static CUresult array_row(CUDA_MEMCPY3D p, CUarray to, CUarray from, CUstream stream, bool ptds,
			  bool synchronous)
{
	if (to) {
		p.dstMemoryType = TYPE_ARRAY;
		p.dstXInBytes = (size_t)p.dstDevice;
		p.dstArray = to;
	}
	if (from) {
		p.srcMemoryType = TYPE_ARRAY;
		p.srcXInBytes = (size_t)p.srcDevice;
		p.srcArray = from;
	}
	return copy(&p, stream, ptds, synchronous);
}

CU_PTDS(cuMemcpyAtoH_v2, (void *to, CUarray from, size_t offset, size_t size),
	array_row(line(H, host(to), D, offset, size), NULL, from, NULL, ptds, true))
CU_PTDS(cuMemcpyHtoA_v2, (CUarray to, size_t offset, const void *from, size_t size),
	array_row(line(D, offset, H, host(from), size), to, NULL, NULL, ptds, true))
CU_PTDS(cuMemcpyAtoD_v2, (CUdeviceptr to, CUarray from, size_t offset, size_t size),
	array_row(line(D, to, D, offset, size), NULL, from, NULL, ptds, true))
CU_PTDS(cuMemcpyDtoA_v2, (CUarray to, size_t offset, CUdeviceptr from, size_t size),
	array_row(line(D, offset, D, from, size), to, NULL, NULL, ptds, true))
CU_PTDS(cuMemcpyAtoA_v2,
	(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t size),
	array_row(line(D, to_offset, D, from_offset, size), to, from, NULL, ptds, true))
CU_PTSZ(cuMemcpyAtoHAsync_v2, (void *to, CUarray from, size_t offset, size_t size, CUstream stream),
	array_row(line(H, host(to), D, offset, size), NULL, from, stream, ptds, false))
CU_PTSZ(cuMemcpyHtoAAsync_v2,
	(CUarray to, size_t offset, const void *from, size_t size, CUstream stream),
	array_row(line(D, offset, H, host(from), size), to, NULL, stream, ptds, false))

/* ---- two and three dimensions ---- */

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream stream, bool ptds, bool synchronous)
{
	CUDA_MEMCPY3D wide;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_MEMCPY3D){
		.srcXInBytes = p->srcXInBytes, .srcY = p->srcY, .srcMemoryType = p->srcMemoryType,
		.srcHost = p->srcHost, .srcDevice = p->srcDevice, .srcArray = p->srcArray,
		.srcPitch = p->srcPitch ? p->srcPitch : p->WidthInBytes,
		.dstXInBytes = p->dstXInBytes, .dstY = p->dstY, .dstMemoryType = p->dstMemoryType,
		.dstHost = p->dstHost, .dstDevice = p->dstDevice, .dstArray = p->dstArray,
		.dstPitch = p->dstPitch ? p->dstPitch : p->WidthInBytes,
		.WidthInBytes = p->WidthInBytes, .Height = p->Height, .Depth = 1,
	};
	return p->Height ? copy(&wide, stream, ptds, synchronous) : CUDA_SUCCESS;
}

CU_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *p), copy_2d(p, NULL, ptds, true))
CU_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *p), copy_2d(p, NULL, ptds, true))
CU_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *p, CUstream stream), copy_2d(p, stream, ptds, false))

static CUresult copy_3d(const CUDA_MEMCPY3D *p, CUstream stream, bool ptds, bool synchronous)
{
	CUDA_MEMCPY3D full;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	full = *p;
	full.srcPitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
	full.srcHeight = p->srcHeight ? p->srcHeight : p->Height;
	full.dstPitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
	full.dstHeight = p->dstHeight ? p->dstHeight : p->Height;
	return p->Height && p->Depth ? copy(&full, stream, ptds, synchronous) : CUDA_SUCCESS;
}

CU_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *p), copy_3d(p, NULL, ptds, true))
CU_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *p, CUstream stream), copy_3d(p, stream, ptds, false))
