// SPDX-License-Identifier: Apache-2.0

// This header covers the creation and the destruction of pools.

#ifndef VG_POOL_LIFETIME_H
#define VG_POOL_LIFETIME_H

#include "driver/driver.h"
#include "state.h"

// vg_pool_lifetime_made records a new pool and the location of its memory.
void vg_pool_lifetime_made(struct vg_state *state, CUmemoryPool handle, const CUmemPoolProps *properties);

// vg_pool_lifetime_opened records the handle of an imported pool. The interposer charges the pool
// when the program imports the first pointer.
void vg_pool_lifetime_opened(struct vg_state *state, CUmemoryPool handle);

// vg_pool_lifetime_context_ended records that the primary context of a device has ended. All memory
// that was allocated or imported from the device's pools ended with the context.
void vg_pool_lifetime_context_ended(struct vg_state *state, uint32_t device);

// vg_pool_lifetime_ending must be called before a pool is destroyed. vg_pool_lifetime_ending
// queries the pool's used memory, and stops the interposer's own calls with the pool.
// vg_pool_lifetime_ending returns NULL if the pool is not known. vg_pool_lifetime_ended releases
// the pool if no memory was in use. A pool in use holds its memory until the last piece is freed
// (pool_destroyed.h). If the interposer cannot count the frees, the pool stays charged.
struct vg_pool *vg_pool_lifetime_ending(struct vg_state *state, CUmemoryPool handle, uint64_t *used);
void vg_pool_lifetime_ended(struct vg_state *state, struct vg_pool *pool, uint64_t used, CUresult result);

#endif
