// SPDX-License-Identifier: Apache-2.0

// This file handles plain, pitched and managed linear memory.

#include "base/number.h"
#include "memory/claim.h"
#include "memory/linear.h"
#include "memory/pointer.h"
#include "memory/pool_destroyed.h"
#include "memory/release.h"

static CUresult vg_undo_free(CUdeviceptr address)
{
	return VG_CALL(cuMemFree_v2, address);
}

static CUresult vg_undo_free_v1(CUdeviceptr address)
{
	return VG_CALL(cuMemFree, (CUdeviceptr_v1)address);
}

VG_API(cuMemAlloc_v2, CUdeviceptr *address, size_t bytes)
{
	struct vg_claim claim;
	CUresult result = vg_claim_current(&claim, VG_WAY_ALLOC, vg_linear_most(bytes));

	if (result)
		return result;
	result = VG_CALL(cuMemAlloc_v2, address, bytes);
	return vg_linear_settle(&claim, result, result ? 0 : *address, bytes, vg_undo_free);
}

VG_API(cuMemAlloc, CUdeviceptr_v1 *address, unsigned bytes)
{
	struct vg_claim claim;
	CUresult result = vg_claim_current(&claim, VG_WAY_ALLOC, vg_linear_most(bytes));

	if (result)
		return result;
	result = VG_CALL(cuMemAlloc, address, bytes);
	return vg_linear_settle(&claim, result, result ? 0 : *address, bytes, vg_undo_free_v1);
}

// vg_pitch_most returns the most memory that rows of this width take. Drivers round a row up to a
// multiple of at most 512 bytes.
static uint64_t vg_pitch_most(uint64_t width, uint64_t height)
{
	uint64_t pitch = vg_round_up(width, 512);

	return height && pitch > UINT64_MAX / height ? UINT64_MAX : pitch * height;
}

VG_API(cuMemAllocPitch_v2, CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
       unsigned element)
{
	struct vg_claim claim;
	uint64_t most = vg_linear_most(vg_pitch_most(width, height));
	CUresult result = vg_claim_current(&claim, VG_WAY_PITCH, most);

	if (result)
		return result;
	result = VG_CALL(cuMemAllocPitch_v2, address, pitch, width, height, element);
	return vg_linear_settle(&claim, result, result ? 0 : *address, result ? 0 : *pitch * height,
				vg_undo_free);
}

VG_API(cuMemAllocPitch, CUdeviceptr_v1 *address, unsigned *pitch, unsigned width, unsigned height,
       unsigned element)
{
	struct vg_claim claim;
	uint64_t most = vg_linear_most(vg_pitch_most(width, height));
	CUresult result = vg_claim_current(&claim, VG_WAY_PITCH, most);

	if (result)
		return result;
	result = VG_CALL(cuMemAllocPitch, address, pitch, width, height, element);
	return vg_linear_settle(&claim, result, result ? 0 : *address,
				result ? 0 : (uint64_t)*pitch * height, vg_undo_free_v1);
}

// Managed memory is charged as if it were always on the GPU. All managed memory can move to the GPU
// at any time, without a call.
VG_API(cuMemAllocManaged, CUdeviceptr *address, size_t bytes, unsigned flags)
{
	struct vg_claim claim;
	CUresult result = vg_claim_current(&claim, VG_WAY_MANAGED, vg_linear_most(bytes));

	if (result)
		return result;
	result = VG_CALL(cuMemAllocManaged, address, bytes, flags);
	return vg_linear_settle(&claim, result, result ? 0 : *address, bytes, vg_undo_free);
}

// An address without an entry belongs to a pool or another process, or was never allocated. The
// driver distinguishes these cases.
VG_API(cuMemFree_v2, CUdeviceptr address)
{
	struct vg_state *state = vg_state_ready();
	struct vg_entry *entry = vg_release_begin(state, VG_LINEAR, address);
	struct vg_entry *pointer = entry ? NULL : vg_pointer_take(state, address);
	struct vg_pool_piece piece = vg_pool_destroyed_find(state, address);
	CUresult result = VG_CALL(cuMemFree_v2, address);

	if (piece.pool && !result)
		vg_pool_destroyed_freed(state, &piece);
	else
		vg_pool_destroyed_kept(state, &piece);
	vg_pointer_freed(state, pointer, !result);
	vg_release_finish(state, entry, result);
	return result;
}

VG_API(cuMemFree, CUdeviceptr_v1 address)
{
	VG_FREE(VG_LINEAR, address, VG_CALL(cuMemFree, address));
}
