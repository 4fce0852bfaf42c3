// SPDX-License-Identifier: Apache-2.0
/* This file implements the entry points of memsets. */
#include "graph.h"

static CUresult set(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
		    size_t height, CUstream handle, bool ptds)
{
	CUDA_MEMSET_NODE_PARAMS p = {to, pitch, value, element, width, height, NULL};
	struct sim_stream *stream;
	struct gs_work work;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	if (!to || to % element)
		return CUDA_ERROR_INVALID_VALUE;
	if (width == 0 || height == 0)
		return CUDA_SUCCESS;
	if (sim_capturing(stream))
		return sim_capture_memset(stream, &p);
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	/* The call writes the content first, because the GPU has the work when the call returns. */
	sim_memset_content(&p);
	work = sim_memset_work(stream->context->device, &p);
	return sim_submit(stream, &work, NULL);
}

CU_PTDS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count),
	set(to, 0, value, 1, count, 1, NULL, ptds))
CU_PTDS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, size_t count),
	set(to, 0, value, 2, count, 1, NULL, ptds))
CU_PTDS(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count),
	set(to, 0, value, 4, count, 1, NULL, ptds))
CU_PTSZ(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
	set(to, 0, value, 1, count, 1, stream, ptds))
CU_PTSZ(cuMemsetD16Async, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
	set(to, 0, value, 2, count, 1, stream, ptds))
CU_PTSZ(cuMemsetD32Async, (CUdeviceptr to, unsigned value, size_t count, CUstream stream),
	set(to, 0, value, 4, count, 1, stream, ptds))

CU_PTDS(cuMemsetD2D8_v2,
	(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height),
	set(to, pitch, value, 1, width, height, NULL, ptds))
CU_PTDS(cuMemsetD2D16_v2,
	(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height),
	set(to, pitch, value, 2, width, height, NULL, ptds))
CU_PTDS(cuMemsetD2D32_v2, (CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height),
	set(to, pitch, value, 4, width, height, NULL, ptds))
CU_PTSZ(cuMemsetD2D8Async,
	(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
	 CUstream stream),
	set(to, pitch, value, 1, width, height, stream, ptds))
CU_PTSZ(cuMemsetD2D16Async,
	(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
	 CUstream stream),
	set(to, pitch, value, 2, width, height, stream, ptds))
CU_PTSZ(cuMemsetD2D32Async,
	(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream),
	set(to, pitch, value, 4, width, height, stream, ptds))

CU_API CUresult cuMemsetD8(CUdeviceptr_v1 to, unsigned char value, unsigned count)
{
	return set(to, 0, value, 1, count, 1, NULL, false);
}

CU_API CUresult cuMemsetD16(CUdeviceptr_v1 to, unsigned short value, unsigned count)
{
	return set(to, 0, value, 2, count, 1, NULL, false);
}

CU_API CUresult cuMemsetD32(CUdeviceptr_v1 to, unsigned value, unsigned count)
{
	return set(to, 0, value, 4, count, 1, NULL, false);
}
