// SPDX-License-Identifier: Apache-2.0

// Pointers that were imported of a pool of another process. Their pool is charged with what
// it holds, as any pool (pool.h): a driver may keep what was imported until the pool ends.
// It is charged with its pointers at least, whatever the driver says.

#ifndef VG_POINTER_H
#define VG_POINTER_H

#include "claim.h"

// vg_pointer_charge charges a pointer that was imported of the pool. It returns 0, or the
// error for the caller, who frees the pointer then.
CUresult vg_pointer_charge(struct vg_state *state, CUmemoryPool handle, CUdeviceptr address);

// vg_pointer_take takes an imported pointer that is about to be freed out of the table; NULL:
// the address is none. vg_pointer_freed discharges it, where the driver has freed it, and
// vg_pointer_freed_async when the stream has come to that.
struct vg_entry *vg_pointer_take(struct vg_state *state, CUdeviceptr address);
void vg_pointer_freed(struct vg_state *state, struct vg_entry *entry, bool freed);
void vg_pointer_freed_async(struct vg_state *state, struct vg_entry *entry, bool freed,
			    CUstream stream, bool per_thread);

#endif
