// SPDX-License-Identifier: Apache-2.0

// Calls that take memory of a size which only the driver knows: an estimate is
// claimed, and corrected by what the process was seen to grow.

#ifndef VG_MEASURED_H
#define VG_MEASURED_H

#include "claim.h"
#include "physical.h"

// vg_expected is what a call is expected to take, in bytes.
struct vg_expected {
	uint64_t claimed;
	uint64_t unmeasured; // charged where it cannot be seen what it took
};

static inline struct vg_expected vg_expect(uint64_t bytes)
{
	return (struct vg_expected){bytes, bytes};
}

struct vg_measured {
	struct vg_claim claim;
	uint64_t unmeasured;
	struct vg_snapshot before;
};

// vg_measured_begin claims what is expected and takes state->contexts, so that one
// such call is under way at a time. It returns 0, or the error for the caller,
// with nothing taken.
CUresult vg_measured_begin(struct vg_measured *call, CUdevice device, uint32_t way,
			   struct vg_expected expected);

// vg_measured_grown is what the call really took, or what is charged where that
// could not be seen.
uint64_t vg_measured_grown(struct vg_measured *call);

// vg_measured_end gives state->contexts back.
void vg_measured_end(const struct vg_measured *call);

#endif
