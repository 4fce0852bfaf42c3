// SPDX-License-Identifier: Apache-2.0

// This header covers the charge of stream-ordered memory. The charge is the device memory that a
// pool holds, not the memory that a program requested. A pool keeps memory after a free. The driver
// reports the held memory (RESERVED_MEM_CURRENT).

#ifndef VG_POOL_HELD_H
#define VG_POOL_HELD_H

#include <stdbool.h>

#include "base/number.h"
#include "state.h"

// vg_pool_granule is the unit by which a pool grows: a granule of the driver's virtual memory.
static const uint64_t vg_pool_granule = 2 * VG_MIB;

// vg_pool_call is a call of the driver with a pool.
struct vg_pool_call {
	struct vg_pool *pool;
	uint64_t claimed;  // bytes that are reserved for the call
	uint64_t borrowed; // bytes that the pool holds already: see pool_claim.c
	uint64_t grown;    // bytes by which the pool has grown after the call
	uint64_t piece;    // bytes requested from an exportable pool: see sizes.h
	uint64_t pointers; // bytes of a pointer that was imported from the pool
	bool granted;      // the call succeeded
};

// vg_pool_held_ask queries the driver for the memory that a pool holds. vg_pool_held_ask also
// queries the used part if the caller needs the used part, or if memory is reserved for other
// calls.
struct vg_pool_answer vg_pool_held_ask(struct vg_pool *pool, bool need_used);

// vg_pool_held_apply charges the memory that the pool holds, in place of the claim of `call`, which
// may be NULL. vg_pool_held_apply changes the usage page only once, so that no reader counts the
// bytes twice. vg_pool_held_apply returns the bytes that the pool took beyond the claim.
uint64_t vg_pool_held_apply(struct vg_state *state, struct vg_pool *pool, const struct vg_pool_answer *answer,
			    struct vg_pool_call *call);

// vg_pool_held_arrived counts an imported pointer that was charged or refused. The caller holds
// pool_mutex.
void vg_pool_held_arrived(struct vg_pool *pool);

// vg_pool_held_drop_pointer subtracts an imported pointer from the pool, if the record has this
// life.
void vg_pool_held_drop_pointer(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes);

// vg_pool_held_refresh queries the driver for the memory of all pools of the process.
void vg_pool_held_refresh(struct vg_state *state);

// vg_pool_held_refresh_stale calls vg_pool_held_refresh if memory was freed since the last query.
void vg_pool_held_refresh_stale(struct vg_state *state);

// vg_pool_held_sum adds up the memory that the pools of a device hold. vg_pool_held_sum returns
// false if a pool cannot be queried, because the pool was destroyed while in use.
bool vg_pool_held_sum(struct vg_state *state, uint32_t device, uint64_t *held);

// vg_pool_held_trim makes the pools of a device return unused memory, and reports whether the
// device has pools.
bool vg_pool_held_trim(struct vg_state *state, uint32_t device);

#endif
