// SPDX-License-Identifier: Apache-2.0

// This header covers pointers that were imported from a pool of another process. The interposer
// charges an imported pool for the memory that the pool holds, like any pool (pool_held.h). A
// driver may keep imported memory until the pool ends. The charge is never less than the size of
// the pool's pointers, whatever the driver reports.

#ifndef VG_POINTER_H
#define VG_POINTER_H

#include <stdbool.h>

#include "driver/driver.h"
#include "state.h"

// vg_pointer_charge charges a pointer that was imported from the pool. vg_pointer_charge returns 0
// or the error for the program. After an error the caller frees the pointer.
CUresult vg_pointer_charge(struct vg_state *state, CUmemoryPool handle, CUdeviceptr address);

// vg_pointer_take removes the entry of an imported pointer that is about to be freed.
// vg_pointer_take returns NULL if the address is not an imported pointer. vg_pointer_freed ends the
// pointer's charge if the driver has freed the pointer. vg_pointer_freed_async ends the charge when
// the stream has reached the free.
struct vg_entry *vg_pointer_take(struct vg_state *state, CUdeviceptr address);
void vg_pointer_freed(struct vg_state *state, struct vg_entry *entry, bool freed);
void vg_pointer_freed_async(struct vg_state *state, struct vg_entry *entry, bool freed,
			    CUstream stream, bool per_thread);

#endif
