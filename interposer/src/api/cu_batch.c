// SPDX-License-Identifier: Apache-2.0

// This file handles batches of copies. The copies of a batch within a device are one item of work,
// because the driver does not document the order of these copies.

#include "fill.h"
#include "time/throttle.h"

static uint64_t vg_batch_bytes(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes,
			       size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; to && from && sizes && i < count; i++)
		if (!vg_on_host(to[i]) && !vg_on_host(from[i]))
			bytes += sizes[i];
	return bytes;
}

static bool vg_operand_on_device(const CUmemcpy3DOperand *operand)
{
	return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY || !vg_on_host(operand->op.ptr.ptr);
}

// vg_batch_volume counts each element of an array as one byte. The measurement of the work corrects
// the estimate.
static uint64_t vg_batch_volume(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; list && i < count; i++)
		if (vg_operand_on_device(&list[i].src) && vg_operand_on_device(&list[i].dst))
			bytes += (uint64_t)list[i].extent.width * list[i].extent.height *
				 list[i].extent.depth;
	return bytes;
}

// A batch without copies within a device is not charged.
#define VG_BATCH(bytes, stream, per_thread, call)                            \
	do {                                                                 \
		uint64_t bytes_ = vg_throttle_state() ? bytes : 0;           \
                                                                             \
		if (bytes_ == 0)                                             \
			return call;                                         \
		VG_BYTES(VG_COPY_BATCH, bytes_, stream, per_thread, call);   \
	} while (0)

// VG_DEFINE_BATCH_V1 defines a batch function of CUDA 12, which reports the index of the failed
// copy.
#define VG_DEFINE_BATCH_V1(name, per_thread)                                                   \
	VG_API(name, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,          \
	       void *attributes, size_t *indexes, size_t attribute_count, size_t *failed,      \
	       CUstream stream)                                                                \
	{                                                                                      \
		VG_BATCH(vg_batch_bytes(to, from, sizes, count), stream, per_thread,           \
			 VG_CALL(name, to, from, sizes, count, attributes, indexes,            \
				 attribute_count, failed, stream));                            \
	}

#define VG_DEFINE_BATCH(name, per_thread)                                                      \
	VG_API(name, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,          \
	       void *attributes, size_t *indexes, size_t attribute_count, CUstream stream)     \
	{                                                                                      \
		VG_BATCH(vg_batch_bytes(to, from, sizes, count), stream, per_thread,           \
			 VG_CALL(name, to, from, sizes, count, attributes, indexes,            \
				 attribute_count, stream));                                    \
	}

#define VG_DEFINE_VOLUMES_V1(name, per_thread)                                                 \
	VG_API(name, size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,               \
	       unsigned long long flags, CUstream stream)                                      \
	{                                                                                      \
		VG_BATCH(vg_batch_volume(list, count), stream, per_thread,                     \
			 VG_CALL(name, count, list, failed, flags, stream));                   \
	}

#define VG_DEFINE_VOLUMES(name, per_thread)                                                    \
	VG_API(name, size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags,     \
	       CUstream stream)                                                                \
	{                                                                                      \
		VG_BATCH(vg_batch_volume(list, count), stream, per_thread,                     \
			 VG_CALL(name, count, list, flags, stream));                           \
	}

VG_DEFINE_BATCH_V1(cuMemcpyBatchAsync, false)
VG_DEFINE_BATCH_V1(cuMemcpyBatchAsync_ptsz, true)
VG_DEFINE_BATCH(cuMemcpyBatchAsync_v2, false)
VG_DEFINE_BATCH(cuMemcpyBatchAsync_v2_ptsz, true)
VG_DEFINE_VOLUMES_V1(cuMemcpy3DBatchAsync, false)
VG_DEFINE_VOLUMES_V1(cuMemcpy3DBatchAsync_ptsz, true)
VG_DEFINE_VOLUMES(cuMemcpy3DBatchAsync_v2, false)
VG_DEFINE_VOLUMES(cuMemcpy3DBatchAsync_v2_ptsz, true)

// ---- single copies with the attributes of copies in batches

#define VG_DEFINE_WITH_ATTRIBUTES(name, per_thread)                                            \
	VG_API(name, CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes,         \
	       CUstream stream)                                                                \
	{                                                                                      \
		VG_BATCH(vg_batch_bytes(&to, &from, &bytes, 1), stream, per_thread,            \
			 VG_CALL(name, to, from, bytes, attributes, stream));                  \
	}

#define VG_DEFINE_VOLUME_WITH_ATTRIBUTES(name, per_thread)                                     \
	VG_API(name, CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags, CUstream stream)  \
	{                                                                                      \
		VG_BATCH(vg_batch_volume(copy, 1), stream, per_thread,                         \
			 VG_CALL(name, copy, flags, stream));                                  \
	}

VG_DEFINE_WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync, false)
VG_DEFINE_WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync_ptsz, true)
VG_DEFINE_VOLUME_WITH_ATTRIBUTES(cuMemcpy3DWithAttributesAsync, false)
VG_DEFINE_VOLUME_WITH_ATTRIBUTES(cuMemcpy3DWithAttributesAsync_ptsz, true)
