// SPDX-License-Identifier: Apache-2.0

#include "linear.h"

#include "base/number.h"
#include "correction.h"
#include "driver/handle.h"
#include "granule.h"
#include "pages/reserve.h"

uint64_t vg_linear_most(uint64_t bytes)
{
	return vg_round_up(bytes, vg_granule);
}

// vg_linear_undo frees a piece for which the limit has no room. Granules that pieces of other
// threads have joined meanwhile stay charged. `joined` is the charge that the piece would have had.
static CUresult vg_linear_undo(struct vg_claim *claim, CUdeviceptr address, uint64_t bytes,
			       uint64_t joined, CUresult (*undo)(CUdeviceptr address))
{
	struct vg_pages *pages = &claim->state->pages;
	uint64_t left;

	undo(address);
	left = vg_granule_leave(claim->state, claim->device, address, bytes);
	if (joined > left)
		vg_reserve_settle(pages, claim->device, 0, joined - left);
	else
		vg_reserve_release(pages, claim->device, left - joined);
	return vg_claim_refuse(claim, bytes);
}

CUresult vg_linear_settle(struct vg_claim *claim, CUresult result, CUdeviceptr address,
			  uint64_t bytes, CUresult (*undo)(CUdeviceptr address))
{
	uint64_t joined;

	if (result || bytes == 0) {
		vg_claim_void(claim);
		return result;
	}
	joined = vg_granule_join(claim->state, claim->device, address, bytes);
	if (!vg_claim_resize(claim, joined))
		return vg_linear_undo(claim, address, bytes, joined, undo);
	if (claim->way == VG_WAY_MANAGED) {
		claim->entry->extra = vg_round_up(bytes, vg_granule);
		vg_correction_uncertain_made(claim->state, claim->device, claim->entry->extra);
	}
	// The entry has the piece's size. The entries of the piece's granules have the charge.
	vg_claim_settle_as(claim, VG_LINEAR, address, vg_handle_context(), bytes);
	return CUDA_SUCCESS;
}
