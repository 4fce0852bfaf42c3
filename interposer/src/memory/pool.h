// SPDX-License-Identifier: Apache-2.0

// This header covers the records of the process's pools: which pools there are, and on which device
// each lies. The memory of graphs counts as a pool of each device.

#ifndef VG_POOL_H
#define VG_POOL_H

#include "driver/driver.h"
#include "state.h"

// The sizes of a pool's pieces are multiples of vg_pool_part.
static const uint64_t vg_pool_part = 512;

// A pool's `visits` consist of a ticket and the number of visitors: see pool_held.c.
enum { vg_ticket_shift = 16, vg_visitors = (1 << vg_ticket_shift) - 1 };

// vg_pool_find returns the record of a pool or, for a NULL handle, of the device's memory of
// graphs; NULL: there is none. Without pool_mutex, the record may end at any time.
struct vg_pool *vg_pool_find(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle);

// vg_pool_follow returns the pool's record, and makes it if needed. vg_pool_follow returns NULL if
// there are too many pools. The caller holds pool_mutex.
struct vg_pool *vg_pool_follow(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle);

// vg_pool_share records whether a pool can be exported, and discards the counts of its pieces. The
// caller holds pool_mutex.
void vg_pool_share(struct vg_state *state, struct vg_pool *pool, bool shareable);

// vg_pool_of returns the record of a pool or, for a NULL handle, of the device's memory of graphs.
// `device` is the place of a pool that is neither known nor a device's default pool. vg_pool_of
// returns NULL if the container does not have that GPU, or if there are too many pools.
struct vg_pool *vg_pool_of(struct vg_state *state, CUmemoryPool handle, CUdevice device);

// vg_pool_life identifies the pool that a record stands for: another pool may take the record of a
// destroyed one.
static inline uint32_t vg_pool_life(const struct vg_state *state, const struct vg_pool *pool)
{
	return atomic_load(&state->pool_lives[pool - state->pools]);
}

// vg_pool_has_pointers reports whether imported pointers keep a pool. The caller holds pool_mutex.
static inline bool vg_pool_has_pointers(const struct vg_pool *pool)
{
	return pool->pointers || pool->arriving;
}

// vg_pool_release releases a pool's charge and record. The caller holds pool_mutex.
void vg_pool_release(struct vg_state *state, struct vg_pool *pool);

// vg_pool_imported returns the record of an imported pool, for a pointer that was just imported
// from it and lies on this device. vg_pool_imported returns NULL as vg_pool_of does, and if the
// pool lies elsewhere. The pool's charge does not grow until vg_pool_claim_pointer has failed or
// vg_pool_claim_settle_pointer was called.
struct vg_pool *vg_pool_imported(struct vg_state *state, CUmemoryPool handle, CUdevice device);

#endif
