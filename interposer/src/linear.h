// SPDX-License-Identifier: Apache-2.0

// What linear memory really takes of the device.
//
// The driver hands device memory out in granules of 2 MiB of the address space: a piece
// of 3 MiB takes two, while thousands of small pieces share one. So what is charged is
// granules, and those that several pieces touch are counted by reference, for each GPU by
// itself: a range of addresses may have memory of several GPUs, at once or in turn. On a
// driver with smaller granules that is more than is taken, never less.
//
// A driver may keep a granule that small pieces have left, for the next ones. So up to
// 8 MiB of such granules stay charged on each GPU, as an estimate: new pieces in them
// cost nothing, and what the driver has not kept the agent finds out (correction.h).

#ifndef VG_LINEAR_H
#define VG_LINEAR_H

#include "claim.h"

// vg_linear_most is the most that a piece of this size takes.
uint64_t vg_linear_most(uint64_t bytes);

// vg_linear_settle finishes a claim after the driver's answer. It frees the
// piece and refuses where it took more than there is room for.
CUresult vg_linear_settle(struct vg_claim *claim, CUresult result, CUdeviceptr address,
			  uint64_t bytes, CUresult (*undo)(CUdeviceptr address));

// vg_linear_forget takes a piece's references from its granules. The entry's
// bytes become those that are released with it: all of them where the context has ended.
void vg_linear_forget(struct vg_state *state, struct vg_entry *entry, bool ended);

#endif
