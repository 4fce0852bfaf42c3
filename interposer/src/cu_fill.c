// SPDX-License-Identifier: Apache-2.0

// Memsets and copies within a device, which hold the GPU as kernels do. Copies
// from and to the host don't, and are free.

#include "stream.h"
#include "throttle.h"

enum { vg_bytes_per_us = 1500000 }; // until the first of a size was measured

enum vg_fill_kind { VG_FILL = 1, VG_FILL_ROWS, VG_COPY };

static uint64_t vg_fill_prior(uint64_t bytes)
{
	return 1000 + bytes / (vg_bytes_per_us / 1000);
}

// vg_fill_key takes sizes that differ by less than 1/8 for the same.
static uint64_t vg_fill_key(enum vg_fill_kind kind, uint64_t bytes)
{
	int bits = 63 - __builtin_clzll(bytes | 8);

	return vg_work_key((uint64_t)bits << 3 | (bytes >> (bits - 3) & 7), (uint64_t)kind + 1000);
}

#define VG_BYTES(kind, bytes, stream, per_thread, call) \
	VG_WORK(vg_fill_key(kind, bytes), vg_fill_prior(bytes), stream, per_thread, call)

// A call without a stream is on the legacy one, or on the thread's own.
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

#define VG_DEFINE_COPY(name, address, size, per_thread)                   \
	VG_API(name, address to, address from, size bytes)                \
	{                                                                 \
		VG_BYTES(VG_COPY, (uint64_t)bytes, NULL, per_thread,      \
			 VG_CALL(name, to, from, bytes));                 \
	}

#define VG_DEFINE_COPY_ASYNC(name, address, size, per_thread)                 \
	VG_API(name, address to, address from, size bytes, CUstream stream)   \
	{                                                                     \
		VG_BYTES(VG_COPY, (uint64_t)bytes, stream, per_thread,        \
			 VG_CALL(name, to, from, bytes, stream));             \
	}

// ---- copies between any two addresses

static bool vg_on_host(CUdeviceptr address)
{
	unsigned type = CU_MEMORYTYPE_HOST;

	return VG_CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ||
	       type == CU_MEMORYTYPE_HOST;
}

#define VG_DEFINE_ANY_COPY(name, per_thread)                                             \
	VG_API(name, CUdeviceptr to, CUdeviceptr from, size_t bytes)                     \
	{                                                                                \
		if (!vg_throttled_state() || vg_on_host(to) || vg_on_host(from))         \
			return VG_CALL(name, to, from, bytes);                           \
		VG_BYTES(VG_COPY, (uint64_t)bytes, NULL, per_thread,                     \
			 VG_CALL(name, to, from, bytes));                                \
	}

#define VG_DEFINE_ANY_COPY_ASYNC(name, per_thread)                                       \
	VG_API(name, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)    \
	{                                                                                \
		if (!vg_throttled_state() || vg_on_host(to) || vg_on_host(from))         \
			return VG_CALL(name, to, from, bytes, stream);                   \
		VG_BYTES(VG_COPY, (uint64_t)bytes, stream, per_thread,                   \
			 VG_CALL(name, to, from, bytes, stream));                        \
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

VG_DEFINE_COPY(cuMemcpyDtoD, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_COPY(cuMemcpyDtoD_v2, CUdeviceptr, size_t, false)
VG_DEFINE_COPY(cuMemcpyDtoD_v2_ptds, CUdeviceptr, size_t, true)
VG_DEFINE_COPY_ASYNC(cuMemcpyDtoDAsync, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, size_t, false)
VG_DEFINE_COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, size_t, true)
VG_DEFINE_ANY_COPY(cuMemcpy, false)
VG_DEFINE_ANY_COPY(cuMemcpy_ptds, true)
VG_DEFINE_ANY_COPY_ASYNC(cuMemcpyAsync, false)
VG_DEFINE_ANY_COPY_ASYNC(cuMemcpyAsync_ptsz, true)
