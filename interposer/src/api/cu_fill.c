// SPDX-License-Identifier: Apache-2.0

// This file handles memsets, which occupy the GPU like kernels.

#include "fill.h"

// A call without a stream uses the legacy stream or the thread's own stream.
#define VG_DEFINE_FILL(name, address, type, size, per_thread)                      \
	VG_API(name, address to, type value, size count)                           \
	{                                                                          \
		VG_BYTES(VG_FILL, (uint64_t)count * sizeof value, NULL, per_thread, \
			 VG_CALL(name, to, value, count));                         \
	}

#define VG_DEFINE_FILL_ASYNC(name, type, per_thread)                                 \
	VG_API(name, CUdeviceptr to, type value, size_t count, CUstream stream)      \
	{                                                                            \
		VG_BYTES(VG_FILL, (uint64_t)count * sizeof value, stream, per_thread, \
			 VG_CALL(name, to, value, count, stream));                   \
	}

#define VG_DEFINE_ROWS(name, address, type, size, per_thread)                          \
	VG_API(name, address to, size pitch, type value, size width, size height)      \
	{                                                                              \
		VG_BYTES(VG_FILL_ROWS, (uint64_t)width * height * sizeof value, NULL,  \
			 per_thread, VG_CALL(name, to, pitch, value, width, height));  \
	}

#define VG_DEFINE_ROWS_ASYNC(name, type, per_thread)                                      \
	VG_API(name, CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, \
	       CUstream stream)                                                           \
	{                                                                                 \
		VG_BYTES(VG_FILL_ROWS, (uint64_t)width * height * sizeof value, stream,   \
			 per_thread, VG_CALL(name, to, pitch, value, width, height, stream)); \
	}

VG_DEFINE_FILL(cuMemsetD8, CUdeviceptr_v1, uint8_t, unsigned, false)
VG_DEFINE_FILL(cuMemsetD8_v2, CUdeviceptr, uint8_t, size_t, false)
VG_DEFINE_FILL(cuMemsetD8_v2_ptds, CUdeviceptr, uint8_t, size_t, true)
VG_DEFINE_FILL_ASYNC(cuMemsetD8Async, uint8_t, false)
VG_DEFINE_FILL_ASYNC(cuMemsetD8Async_ptsz, uint8_t, true)
VG_DEFINE_FILL(cuMemsetD16, CUdeviceptr_v1, uint16_t, unsigned, false)
VG_DEFINE_FILL(cuMemsetD16_v2, CUdeviceptr, uint16_t, size_t, false)
VG_DEFINE_FILL(cuMemsetD16_v2_ptds, CUdeviceptr, uint16_t, size_t, true)
VG_DEFINE_FILL_ASYNC(cuMemsetD16Async, uint16_t, false)
VG_DEFINE_FILL_ASYNC(cuMemsetD16Async_ptsz, uint16_t, true)
VG_DEFINE_FILL(cuMemsetD32, CUdeviceptr_v1, uint32_t, unsigned, false)
VG_DEFINE_FILL(cuMemsetD32_v2, CUdeviceptr, uint32_t, size_t, false)
VG_DEFINE_FILL(cuMemsetD32_v2_ptds, CUdeviceptr, uint32_t, size_t, true)
VG_DEFINE_FILL_ASYNC(cuMemsetD32Async, uint32_t, false)
VG_DEFINE_FILL_ASYNC(cuMemsetD32Async_ptsz, uint32_t, true)

VG_DEFINE_ROWS(cuMemsetD2D8, CUdeviceptr_v1, uint8_t, unsigned, false)
VG_DEFINE_ROWS(cuMemsetD2D8_v2, CUdeviceptr, uint8_t, size_t, false)
VG_DEFINE_ROWS(cuMemsetD2D8_v2_ptds, CUdeviceptr, uint8_t, size_t, true)
VG_DEFINE_ROWS_ASYNC(cuMemsetD2D8Async, uint8_t, false)
VG_DEFINE_ROWS_ASYNC(cuMemsetD2D8Async_ptsz, uint8_t, true)
VG_DEFINE_ROWS(cuMemsetD2D16, CUdeviceptr_v1, uint16_t, unsigned, false)
VG_DEFINE_ROWS(cuMemsetD2D16_v2, CUdeviceptr, uint16_t, size_t, false)
VG_DEFINE_ROWS(cuMemsetD2D16_v2_ptds, CUdeviceptr, uint16_t, size_t, true)
VG_DEFINE_ROWS_ASYNC(cuMemsetD2D16Async, uint16_t, false)
VG_DEFINE_ROWS_ASYNC(cuMemsetD2D16Async_ptsz, uint16_t, true)
VG_DEFINE_ROWS(cuMemsetD2D32, CUdeviceptr_v1, uint32_t, unsigned, false)
VG_DEFINE_ROWS(cuMemsetD2D32_v2, CUdeviceptr, uint32_t, size_t, false)
VG_DEFINE_ROWS(cuMemsetD2D32_v2_ptds, CUdeviceptr, uint32_t, size_t, true)
VG_DEFINE_ROWS_ASYNC(cuMemsetD2D32Async, uint32_t, false)
VG_DEFINE_ROWS_ASYNC(cuMemsetD2D32Async_ptsz, uint32_t, true)
