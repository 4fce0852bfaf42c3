// SPDX-License-Identifier: Apache-2.0

// This header covers granules: the driver allocates device memory in units of 2 MiB of the address
// space. A piece of 3 MiB takes two granules, and thousands of small pieces share a granule. The
// interposer therefore charges granules. A granule that several pieces touch has a reference count
// on each GPU, because a range of addresses may have memory of several GPUs. On a driver with
// smaller granules the charge is too high, never too low.
//
// A driver may keep a granule whose small pieces were freed, for the next small pieces. Up to 8 MiB
// of empty granules therefore stay charged on each GPU, as an estimate. New pieces in retained
// granules add no charge. The agent's measurement credits granules that the driver has not kept
// (correction.h).

#ifndef VG_GRANULE_H
#define VG_GRANULE_H

#include "base/number.h"
#include "state.h"

static const uint64_t vg_granule = 2 * VG_MIB;

// vg_granule_join enters a piece into its granules, and returns the bytes to charge.
uint64_t vg_granule_join(struct vg_state *state, uint32_t device, uint64_t address, uint64_t bytes);

// vg_granule_leave removes a piece from its granules, retains no granule, and returns the bytes to
// release.
uint64_t vg_granule_leave(struct vg_state *state, uint32_t device, uint64_t address, uint64_t bytes);

// vg_granule_forget removes a piece from its granules, and sets the entry's `bytes` to the bytes to
// release. Unless the context has ended, vg_granule_forget may retain granules that become empty.
void vg_granule_forget(struct vg_state *state, struct vg_entry *entry, bool ended);

#endif
