// SPDX-License-Identifier: Apache-2.0

// This header covers the records of the process's pools, with the device of each pool. The graph
// memory of each device counts as a pool.

#ifndef VG_POOL_H
#define VG_POOL_H

#include "driver/driver.h"
#include "state.h"

// vg_pool_part is the unit of the sizes of a pool's pieces.
static const uint64_t vg_pool_part = 512;

// A pool's `visits` consist of a ticket and the number of visitors: see pool_held.c.
enum { vg_ticket_shift = 16, vg_visitors = (1 << vg_ticket_shift) - 1 };

// vg_pool_find returns the record of a pool or, for a NULL handle, of the device's graph memory.
// vg_pool_find returns NULL if no record exists. Without pool_mutex, the record may end at any
// time.
struct vg_pool *vg_pool_find(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle);

// vg_pool_follow returns the pool's record. If the pool has no record, vg_pool_follow creates a
// record, or returns NULL if the process has too many pools. The caller holds pool_mutex.
struct vg_pool *vg_pool_follow(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle);

// vg_pool_share records whether a pool can be exported, and discards the counts of its pieces. The
// caller holds pool_mutex.
void vg_pool_share(struct vg_state *state, struct vg_pool *pool, bool shareable);

// vg_pool_of returns the record of a pool or, for a NULL handle, of the device's graph memory.
// `device` is the device of a pool that is neither known nor a device's default pool. vg_pool_of
// returns NULL if the container does not have that GPU, or if the process has too many pools.
struct vg_pool *vg_pool_of(struct vg_state *state, CUmemoryPool handle, CUdevice device);

// vg_pool_life returns the life of a record, which identifies the pool, because another pool may
// take the record of a destroyed pool.
static inline uint32_t vg_pool_life(const struct vg_state *state, const struct vg_pool *pool)
{
	return atomic_load(&state->pool_lives[pool - state->pools]);
}

// vg_pool_has_pointers reports whether a pool has imported pointers. The caller holds pool_mutex.
static inline bool vg_pool_has_pointers(const struct vg_pool *pool)
{
	return pool->pointers || pool->arriving;
}

// vg_pool_release releases a pool's charge and record. The caller holds pool_mutex.
void vg_pool_release(struct vg_state *state, struct vg_pool *pool);

// vg_pool_imported returns the record of an imported pool, from which a pointer on this device was
// just imported. vg_pool_imported returns NULL if vg_pool_of returns NULL, or if the pool is on
// another device. The pool's charge does not grow until vg_pool_claim_pointer has failed or
// vg_pool_claim_settle_pointer was called.
struct vg_pool *vg_pool_imported(struct vg_state *state, CUmemoryPool handle, CUdevice device);

#endif
