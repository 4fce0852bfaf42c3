// SPDX-License-Identifier: Apache-2.0

// This file handles copies within a device, which occupy the GPU like kernels. Copies from and to
// the host, or to another device, run on copy engines and are not charged. A driver with unified
// addresses may accept a device's address in place of a host's address. A copy with a device's
// address is charged. Some copies wait for earlier work: vg_watch_stream covers these waits.

#include "fill.h"
#include "time/throttle.h"
#include "time/watch.h"

// ---- the two sides of a copy

// vg_is_far reports whether the driver may read or write the GPU's memory at an address that a
// program declares as the host's.
static bool vg_is_far(const void *host)
{
	return !vg_on_host((CUdeviceptr)(uintptr_t)host);
}

// vg_on_device reports whether one side of a copy belongs to a device.
static bool vg_on_device(int type, const void *host, CUdeviceptr address)
{
	if (type == CU_MEMORYTYPE_HOST)
		return vg_is_far(host);
	return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
	       (type == CU_MEMORYTYPE_UNIFIED && !vg_on_host(address));
}

static CUdevice vg_device_of(CUcontext context)
{
	CUdevice device = -1;

	if (VG_CALL(cuCtxPushCurrent_v2, context))
		return -1;
	if (VG_CALL(cuCtxGetDevice, &device))
		device = -1;
	VG_CALL(cuCtxPopCurrent_v2, &context);
	return device;
}

static bool vg_same_device(CUcontext a, CUcontext b)
{
	return a == b || vg_device_of(a) == vg_device_of(b);
}

#define VG_WITHIN(p)                                                        \
	(vg_on_device((p)->dstMemoryType, (p)->dstHost, (p)->dstDevice) && \
	 vg_on_device((p)->srcMemoryType, (p)->srcHost, (p)->srcDevice))
#define VG_WITHIN_PEER(p) (VG_WITHIN(p) && vg_same_device((p)->dstContext, (p)->srcContext))
#define VG_AREA(p) ((uint64_t)(p)->WidthInBytes * (p)->Height)
#define VG_VOLUME(p) (VG_AREA(p) * (p)->Depth)

// VG_WAITING watches the stream of a copy that waits. A call without a stream uses the legacy
// stream or the thread's own stream.
#define VG_WAITING(per_thread, call)                \
	do {                                        \
		CUresult result_;                   \
                                                    \
		vg_watch_stream(NULL, per_thread);  \
		result_ = call;                     \
		if (!result_)                       \
			vg_watch_other_waited();    \
		return result_;                     \
	} while (0)

// ---- between the host and a device

// VG_FROM_HOST is the body of a call that waits for a copy from or to the host.
#define VG_FROM_HOST(kind, host, bytes, per_thread, call)                          \
	do {                                                                       \
		if (!vg_throttle_state() || !vg_is_far(host))                      \
			VG_WAITING(per_thread, call);                              \
		VG_BYTES(kind, (uint64_t)bytes, NULL, per_thread, call);           \
	} while (0)

#define VG_FROM_HOST_ASYNC(kind, host, bytes, stream, per_thread, call)            \
	do {                                                                       \
		if (!vg_throttle_state() || !vg_is_far(host))                      \
			return call;                                               \
		VG_BYTES(kind, (uint64_t)bytes, stream, per_thread, call);         \
	} while (0)

#define VG_DEFINE_UPLOAD(name, address, size, per_thread)                                          \
	VG_API(name, address to, const void *from, size bytes)                                     \
	{                                                                                          \
		VG_FROM_HOST(VG_COPY, from, bytes, per_thread, VG_CALL(name, to, from, bytes));    \
	}

#define VG_DEFINE_DOWNLOAD(name, address, size, per_thread)                                        \
	VG_API(name, void *to, address from, size bytes)                                           \
	{                                                                                          \
		VG_FROM_HOST(VG_COPY, to, bytes, per_thread, VG_CALL(name, to, from, bytes));      \
	}

#define VG_DEFINE_UPLOAD_ASYNC(name, address, size, per_thread)                   \
	VG_API(name, address to, const void *from, size bytes, CUstream stream)   \
	{                                                                         \
		VG_FROM_HOST_ASYNC(VG_COPY, from, bytes, stream, per_thread,      \
				   VG_CALL(name, to, from, bytes, stream));       \
	}

#define VG_DEFINE_DOWNLOAD_ASYNC(name, address, size, per_thread)                 \
	VG_API(name, void *to, address from, size bytes, CUstream stream)         \
	{                                                                         \
		VG_FROM_HOST_ASYNC(VG_COPY, to, bytes, stream, per_thread,        \
				   VG_CALL(name, to, from, bytes, stream));       \
	}

VG_DEFINE_UPLOAD(cuMemcpyHtoD, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_UPLOAD(cuMemcpyHtoD_v2, CUdeviceptr, size_t, false)
VG_DEFINE_UPLOAD(cuMemcpyHtoD_v2_ptds, CUdeviceptr, size_t, true)
VG_DEFINE_DOWNLOAD(cuMemcpyDtoH, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_DOWNLOAD(cuMemcpyDtoH_v2, CUdeviceptr, size_t, false)
VG_DEFINE_DOWNLOAD(cuMemcpyDtoH_v2_ptds, CUdeviceptr, size_t, true)
VG_DEFINE_UPLOAD_ASYNC(cuMemcpyHtoDAsync, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_UPLOAD_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, size_t, false)
VG_DEFINE_UPLOAD_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, size_t, true)
VG_DEFINE_DOWNLOAD_ASYNC(cuMemcpyDtoHAsync, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_DOWNLOAD_ASYNC(cuMemcpyDtoHAsync_v2, CUdeviceptr, size_t, false)
VG_DEFINE_DOWNLOAD_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, CUdeviceptr, size_t, true)

// ---- within a device

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

VG_DEFINE_COPY(cuMemcpyDtoD, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_COPY(cuMemcpyDtoD_v2, CUdeviceptr, size_t, false)
VG_DEFINE_COPY(cuMemcpyDtoD_v2_ptds, CUdeviceptr, size_t, true)
VG_DEFINE_COPY_ASYNC(cuMemcpyDtoDAsync, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, size_t, false)
VG_DEFINE_COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, size_t, true)

// ---- between any two addresses

#define VG_DEFINE_ANY_COPY(name, per_thread)                                             \
	VG_API(name, CUdeviceptr to, CUdeviceptr from, size_t bytes)                     \
	{                                                                                \
		if (!vg_throttle_state())                                                \
			return VG_CALL(name, to, from, bytes);                           \
		if (vg_on_host(to) || vg_on_host(from))                                  \
			VG_WAITING(per_thread, VG_CALL(name, to, from, bytes));          \
		VG_BYTES(VG_COPY, (uint64_t)bytes, NULL, per_thread,                     \
			 VG_CALL(name, to, from, bytes));                                \
	}

#define VG_DEFINE_ANY_COPY_ASYNC(name, per_thread)                                       \
	VG_API(name, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)    \
	{                                                                                \
		if (!vg_throttle_state() || vg_on_host(to) || vg_on_host(from))          \
			return VG_CALL(name, to, from, bytes, stream);                   \
		VG_BYTES(VG_COPY, (uint64_t)bytes, stream, per_thread,                   \
			 VG_CALL(name, to, from, bytes, stream));                        \
	}

VG_DEFINE_ANY_COPY(cuMemcpy, false)
VG_DEFINE_ANY_COPY(cuMemcpy_ptds, true)
VG_DEFINE_ANY_COPY_ASYNC(cuMemcpyAsync, false)
VG_DEFINE_ANY_COPY_ASYNC(cuMemcpyAsync_ptsz, true)

// ---- of two and three dimensions

#define VG_DEFINE_SHAPE(name, params, within, bytes, per_thread)                      \
	VG_API(name, const params *p)                                                 \
	{                                                                             \
		if (!p || !vg_throttle_state())                                       \
			return VG_CALL(name, p);                                      \
		if (!within(p))                                                       \
			VG_WAITING(per_thread, VG_CALL(name, p));                     \
		VG_BYTES(VG_COPY_ROWS, bytes(p), NULL, per_thread, VG_CALL(name, p)); \
	}

#define VG_DEFINE_SHAPE_ASYNC(name, params, within, bytes, per_thread)                          \
	VG_API(name, const params *p, CUstream stream)                                          \
	{                                                                                       \
		if (!p || !vg_throttle_state() || !within(p))                                   \
			return VG_CALL(name, p, stream);                                        \
		VG_BYTES(VG_COPY_ROWS, bytes(p), stream, per_thread, VG_CALL(name, p, stream)); \
	}

VG_DEFINE_SHAPE(cuMemcpy2D, CUDA_MEMCPY2D_v1, VG_WITHIN, VG_AREA, false)
VG_DEFINE_SHAPE(cuMemcpy2D_v2, CUDA_MEMCPY2D, VG_WITHIN, VG_AREA, false)
VG_DEFINE_SHAPE(cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D, VG_WITHIN, VG_AREA, true)
VG_DEFINE_SHAPE(cuMemcpy2DUnaligned, CUDA_MEMCPY2D_v1, VG_WITHIN, VG_AREA, false)
VG_DEFINE_SHAPE(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, VG_WITHIN, VG_AREA, false)
VG_DEFINE_SHAPE(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, VG_WITHIN, VG_AREA, true)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy2DAsync, CUDA_MEMCPY2D_v1, VG_WITHIN, VG_AREA, false)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, VG_WITHIN, VG_AREA, false)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D, VG_WITHIN, VG_AREA, true)
VG_DEFINE_SHAPE(cuMemcpy3D, CUDA_MEMCPY3D_v1, VG_WITHIN, VG_VOLUME, false)
VG_DEFINE_SHAPE(cuMemcpy3D_v2, CUDA_MEMCPY3D, VG_WITHIN, VG_VOLUME, false)
VG_DEFINE_SHAPE(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, VG_WITHIN, VG_VOLUME, true)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy3DAsync, CUDA_MEMCPY3D_v1, VG_WITHIN, VG_VOLUME, false)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, VG_WITHIN, VG_VOLUME, false)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, VG_WITHIN, VG_VOLUME, true)
VG_DEFINE_SHAPE(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, VG_WITHIN_PEER, VG_VOLUME, false)
VG_DEFINE_SHAPE(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D_PEER, VG_WITHIN_PEER, VG_VOLUME, true)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, VG_WITHIN_PEER, VG_VOLUME, false)
VG_DEFINE_SHAPE_ASYNC(cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D_PEER, VG_WITHIN_PEER, VG_VOLUME, true)

// ---- of a row of an array

#define VG_DEFINE_INTO_ARRAY(name, address, size, per_thread)                     \
	VG_API(name, CUarray to, size offset, address from, size bytes)           \
	{                                                                         \
		VG_BYTES(VG_COPY_ROWS, (uint64_t)bytes, NULL, per_thread,         \
			 VG_CALL(name, to, offset, from, bytes));                 \
	}

#define VG_DEFINE_FROM_ARRAY(name, address, size, per_thread)                     \
	VG_API(name, address to, CUarray from, size offset, size bytes)           \
	{                                                                         \
		VG_BYTES(VG_COPY_ROWS, (uint64_t)bytes, NULL, per_thread,         \
			 VG_CALL(name, to, from, offset, bytes));                 \
	}

#define VG_DEFINE_ARRAYS(name, size, per_thread)                                             \
	VG_API(name, CUarray to, size to_offset, CUarray from, size from_offset, size bytes) \
	{                                                                                    \
		VG_BYTES(VG_COPY_ROWS, (uint64_t)bytes, NULL, per_thread,                    \
			 VG_CALL(name, to, to_offset, from, from_offset, bytes));            \
	}

VG_DEFINE_INTO_ARRAY(cuMemcpyDtoA, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_INTO_ARRAY(cuMemcpyDtoA_v2, CUdeviceptr, size_t, false)
VG_DEFINE_INTO_ARRAY(cuMemcpyDtoA_v2_ptds, CUdeviceptr, size_t, true)
VG_DEFINE_FROM_ARRAY(cuMemcpyAtoD, CUdeviceptr_v1, unsigned, false)
VG_DEFINE_FROM_ARRAY(cuMemcpyAtoD_v2, CUdeviceptr, size_t, false)
VG_DEFINE_FROM_ARRAY(cuMemcpyAtoD_v2_ptds, CUdeviceptr, size_t, true)
VG_DEFINE_ARRAYS(cuMemcpyAtoA, unsigned, false)
VG_DEFINE_ARRAYS(cuMemcpyAtoA_v2, size_t, false)
VG_DEFINE_ARRAYS(cuMemcpyAtoA_v2_ptds, size_t, true)

// ---- of a row of an array, from and to the host

#define VG_DEFINE_UPLOAD_ROW(name, size, per_thread)                               \
	VG_API(name, CUarray to, size offset, const void *from, size bytes)        \
	{                                                                          \
		VG_FROM_HOST(VG_COPY_ROWS, from, bytes, per_thread,                \
			     VG_CALL(name, to, offset, from, bytes));              \
	}

#define VG_DEFINE_DOWNLOAD_ROW(name, size, per_thread)                             \
	VG_API(name, void *to, CUarray from, size offset, size bytes)              \
	{                                                                          \
		VG_FROM_HOST(VG_COPY_ROWS, to, bytes, per_thread,                  \
			     VG_CALL(name, to, from, offset, bytes));              \
	}

#define VG_DEFINE_UPLOAD_ROW_ASYNC(name, size, per_thread)                                      \
	VG_API(name, CUarray to, size offset, const void *from, size bytes, CUstream stream)    \
	{                                                                                       \
		VG_FROM_HOST_ASYNC(VG_COPY_ROWS, from, bytes, stream, per_thread,               \
				   VG_CALL(name, to, offset, from, bytes, stream));             \
	}

#define VG_DEFINE_DOWNLOAD_ROW_ASYNC(name, size, per_thread)                                    \
	VG_API(name, void *to, CUarray from, size offset, size bytes, CUstream stream)          \
	{                                                                                       \
		VG_FROM_HOST_ASYNC(VG_COPY_ROWS, to, bytes, stream, per_thread,                 \
				   VG_CALL(name, to, from, offset, bytes, stream));             \
	}

VG_DEFINE_UPLOAD_ROW(cuMemcpyHtoA, unsigned, false)
VG_DEFINE_UPLOAD_ROW(cuMemcpyHtoA_v2, size_t, false)
VG_DEFINE_UPLOAD_ROW(cuMemcpyHtoA_v2_ptds, size_t, true)
VG_DEFINE_DOWNLOAD_ROW(cuMemcpyAtoH, unsigned, false)
VG_DEFINE_DOWNLOAD_ROW(cuMemcpyAtoH_v2, size_t, false)
VG_DEFINE_DOWNLOAD_ROW(cuMemcpyAtoH_v2_ptds, size_t, true)
VG_DEFINE_UPLOAD_ROW_ASYNC(cuMemcpyHtoAAsync, unsigned, false)
VG_DEFINE_UPLOAD_ROW_ASYNC(cuMemcpyHtoAAsync_v2, size_t, false)
VG_DEFINE_UPLOAD_ROW_ASYNC(cuMemcpyHtoAAsync_v2_ptsz, size_t, true)
VG_DEFINE_DOWNLOAD_ROW_ASYNC(cuMemcpyAtoHAsync, unsigned, false)
VG_DEFINE_DOWNLOAD_ROW_ASYNC(cuMemcpyAtoHAsync_v2, size_t, false)
VG_DEFINE_DOWNLOAD_ROW_ASYNC(cuMemcpyAtoHAsync_v2_ptsz, size_t, true)

// ---- between two contexts

#define VG_DEFINE_PEER(name, per_thread)                                                    \
	VG_API(name, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,                \
	       CUcontext from_context, size_t bytes)                                        \
	{                                                                                   \
		if (!vg_throttle_state() || !vg_same_device(to_context, from_context))      \
			return VG_CALL(name, to, to_context, from, from_context, bytes);    \
		VG_BYTES(VG_COPY, (uint64_t)bytes, NULL, per_thread,                        \
			 VG_CALL(name, to, to_context, from, from_context, bytes));         \
	}

#define VG_DEFINE_PEER_ASYNC(name, per_thread)                                                   \
	VG_API(name, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,                     \
	       CUcontext from_context, size_t bytes, CUstream stream)                            \
	{                                                                                        \
		if (!vg_throttle_state() || !vg_same_device(to_context, from_context))           \
			return VG_CALL(name, to, to_context, from, from_context, bytes, stream); \
		VG_BYTES(VG_COPY, (uint64_t)bytes, stream, per_thread,                           \
			 VG_CALL(name, to, to_context, from, from_context, bytes, stream));      \
	}

VG_DEFINE_PEER(cuMemcpyPeer, false)
VG_DEFINE_PEER(cuMemcpyPeer_ptds, true)
VG_DEFINE_PEER_ASYNC(cuMemcpyPeerAsync, false)
VG_DEFINE_PEER_ASYNC(cuMemcpyPeerAsync_ptsz, true)
