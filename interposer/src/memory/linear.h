// SPDX-License-Identifier: Apache-2.0

// This header covers the granules that linear memory takes of the device (granule.h).

#ifndef VG_LINEAR_H
#define VG_LINEAR_H

#include "claim.h"

// vg_linear_most returns the most memory that a piece of this size can take, in bytes.
uint64_t vg_linear_most(uint64_t bytes);

// vg_linear_settle finishes a claim after the driver's call. If the limit has no room for the
// piece's actual size, vg_linear_settle frees the piece and refuses the claim.
CUresult vg_linear_settle(struct vg_claim *claim, CUresult result, CUdeviceptr address,
			  uint64_t bytes, CUresult (*undo)(CUdeviceptr address));

#endif
