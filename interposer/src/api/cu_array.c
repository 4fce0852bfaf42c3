// SPDX-License-Identifier: Apache-2.0

// This file handles arrays and mipmapped arrays. The interposer determines the size of an array
// before the array takes memory. To determine the size, the interposer creates an equal array with
// deferred mapping, which takes no memory.

#include "base/number.h"
#include "driver/handle.h"
#include "memory/claim.h"
#include "memory/release.h"

// vg_array_granule is the size of the blocks in which real drivers place arrays.
static const uint64_t vg_array_granule = 64 * 1024;

static bool vg_takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	return !(shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

// vg_texel_bytes returns the size of one channel. Formats that are not listed are compressed or
// planar and take at most 16 bytes.
static uint64_t vg_texel_bytes(unsigned format)
{
	switch (format) {
	case 0x01: case 0x08: return 1;
	case 0x02: case 0x09: case 0x10: return 2;
	case 0x03: case 0x0a: case 0x20: return 4;
	default: return 16;
	}
}

static uint64_t vg_multiply(uint64_t a, uint64_t b)
{
	return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

// vg_computed returns an upper bound of the size, for drivers that do not report the size.
// vg_computed pads rows to 512 bytes, and adds half of the size for the smaller levels of a mipmap.
static uint64_t vg_computed(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
	uint64_t row = vg_multiply(vg_multiply(shape->Width, shape->NumChannels),
				   vg_texel_bytes(shape->Format));
	uint64_t rows = vg_multiply(shape->Height ? shape->Height : 1, shape->Depth ? shape->Depth : 1);
	uint64_t bytes = rows == 1 ? row : vg_multiply(vg_round_up(row, 512), rows);

	return levels > 1 ? vg_add_saturating(bytes, bytes / 2) : bytes;
}

static uint64_t vg_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, CUdevice device)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
	CUDA_ARRAY3D_DESCRIPTOR deferred = *shape;
	CUresult result;
	CUarray twin;

	deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	if (VG_CALL(cuArray3DCreate_v2, &twin, &deferred))
		return vg_round_up(vg_computed(shape, 1), vg_array_granule);
	result = VG_CALL(cuArrayGetMemoryRequirements, &needs, twin, device);
	VG_CALL(cuArrayDestroy, twin);
	if (result || needs.size == 0)
		return vg_round_up(vg_computed(shape, 1), vg_array_granule);
	return needs.size;
}

static uint64_t vg_mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels,
				CUdevice device)
{
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
	CUDA_ARRAY3D_DESCRIPTOR deferred = *shape;
	CUmipmappedArray twin;
	CUresult result;

	deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
	if (VG_CALL(cuMipmappedArrayCreate, &twin, &deferred, levels))
		return vg_round_up(vg_computed(shape, levels), vg_array_granule);
	result = VG_CALL(cuMipmappedArrayGetMemoryRequirements, &needs, twin, device);
	VG_CALL(cuMipmappedArrayDestroy, twin);
	if (result || needs.size == 0)
		return vg_round_up(vg_computed(shape, levels), vg_array_granule);
	return needs.size;
}

// vg_array_claim claims the memory that an array of this shape takes on the current device. For an
// array without memory, vg_array_claim claims nothing.
static CUresult vg_array_claim(struct vg_claim *claim, const CUDA_ARRAY3D_DESCRIPTOR *shape,
			       unsigned levels, bool mipmap)
{
	CUdevice device;
	CUresult result;
	uint64_t bytes = 0;

	if (!vg_state_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuCtxGetDevice, &device);
	if (result)
		return result;
	if (vg_takes_memory(shape))
		bytes = mipmap ? vg_mipmap_bytes(shape, levels, device) : vg_array_bytes(shape, device);
	return vg_claim_on(claim, device, mipmap ? VG_WAY_MIPMAP : VG_WAY_ARRAY, bytes);
}

static CUresult vg_array_settle(struct vg_claim *claim, CUresult result, const CUarray *array)
{
	if (result)
		vg_claim_void(claim);
	else
		vg_claim_settle(claim, VG_ARRAY, vg_handle_key(*array), vg_handle_context());
	return result;
}

VG_API(cuArray3DCreate_v2, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	struct vg_claim claim;
	CUresult result;

	if (!shape)
		return VG_CALL(cuArray3DCreate_v2, array, shape);
	result = vg_array_claim(&claim, shape, 1, false);
	if (result)
		return result;
	return vg_array_settle(&claim, VG_CALL(cuArray3DCreate_v2, array, shape), array);
}

VG_API(cuArrayCreate_v2, CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {0};
	struct vg_claim claim;
	CUresult result;

	if (!flat)
		return VG_CALL(cuArrayCreate_v2, array, flat);
	shape.Width = flat->Width;
	shape.Height = flat->Height;
	shape.Format = flat->Format;
	shape.NumChannels = flat->NumChannels;
	result = vg_array_claim(&claim, &shape, 1, false);
	if (result)
		return result;
	return vg_array_settle(&claim, VG_CALL(cuArrayCreate_v2, array, flat), array);
}

VG_API(cuArrayCreate, CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *flat)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {0};
	struct vg_claim claim;
	CUresult result;

	if (!flat)
		return VG_CALL(cuArrayCreate, array, flat);
	shape.Width = flat->Width;
	shape.Height = flat->Height;
	shape.Format = flat->Format;
	shape.NumChannels = flat->NumChannels;
	result = vg_array_claim(&claim, &shape, 1, false);
	if (result)
		return result;
	return vg_array_settle(&claim, VG_CALL(cuArrayCreate, array, flat), array);
}

VG_API(cuArray3DCreate, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {0};
	struct vg_claim claim;
	CUresult result;

	if (!old)
		return VG_CALL(cuArray3DCreate, array, old);
	shape.Width = old->Width;
	shape.Height = old->Height;
	shape.Depth = old->Depth;
	shape.Format = old->Format;
	shape.NumChannels = old->NumChannels;
	shape.Flags = old->Flags;
	result = vg_array_claim(&claim, &shape, 1, false);
	if (result)
		return result;
	return vg_array_settle(&claim, VG_CALL(cuArray3DCreate, array, old), array);
}

VG_API(cuMipmappedArrayCreate, CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
       unsigned levels)
{
	struct vg_claim claim;
	CUresult result;

	if (!shape)
		return VG_CALL(cuMipmappedArrayCreate, array, shape, levels);
	result = vg_array_claim(&claim, shape, levels, true);
	if (result)
		return result;
	result = VG_CALL(cuMipmappedArrayCreate, array, shape, levels);
	if (result)
		vg_claim_void(&claim);
	else
		vg_claim_settle(&claim, VG_MIPMAP, vg_handle_key(*array), vg_handle_context());
	return result;
}

VG_API(cuArrayDestroy, CUarray array)
{
	VG_FREE(VG_ARRAY, vg_handle_key(array), VG_CALL(cuArrayDestroy, array));
}

VG_API(cuMipmappedArrayDestroy, CUmipmappedArray array)
{
	VG_FREE(VG_MIPMAP, vg_handle_key(array), VG_CALL(cuMipmappedArrayDestroy, array));
}
