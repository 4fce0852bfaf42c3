// SPDX-License-Identifier: Apache-2.0

// The driver allocates device memory in granules of 2 MiB of the address space. A piece of 3 MiB
// takes two, while thousands of small pieces share one. The charge is therefore counted in
// granules. A granule that several pieces touch has a reference count on each GPU. A range of
// addresses may have memory of several GPUs, at once or in turn. On a driver with smaller granules
// the charge is too high, never too low.
//
// A driver may keep a granule whose small pieces were freed, for the next small pieces. Up to 8 MiB
// of empty granules therefore stay charged on each GPU, as an estimate. New pieces in retained
// granules cost nothing. The agent's measurement shows which granules the driver has not kept
// (correction.h).

#ifndef VG_GRANULE_H
#define VG_GRANULE_H

#include "base/number.h"
#include "state.h"

static const uint64_t vg_granule = 2 * VG_MIB;

// vg_granule_join enters a piece into its granules, and returns how many bytes that adds.
uint64_t vg_granule_join(struct vg_state *state, uint32_t device, uint64_t address, uint64_t bytes);

// vg_granule_leave removes a piece from its granules at once, and returns how many bytes that
// frees.
uint64_t vg_granule_leave(struct vg_state *state, uint32_t device, uint64_t address, uint64_t bytes);

// vg_granule_forget removes a piece's references from its granules. vg_granule_forget sets the
// entry's `bytes` to the released bytes, which includes retained granules only if the context has
// ended.
void vg_granule_forget(struct vg_state *state, struct vg_entry *entry, bool ended);

#endif
