// SPDX-License-Identifier: Apache-2.0

// Stream-ordered memory. What counts is not what a program asked of a pool but
// what the pool holds of the device, which outlives a free; the driver tells it
// (RESERVED_MEM_CURRENT). The memory of graphs is such a pool of each device.

#ifndef VG_POOL_H
#define VG_POOL_H

#include "claim.h"

// The pieces of a pool are multiples of this.
static const uint64_t vg_pool_part = 512;

// A pool's `visits` are a ticket and how many visitors there are: see pool.c.
enum { vg_ticket_shift = 16, vg_visitors = (1 << vg_ticket_shift) - 1 };

// vg_pool_find returns the record of a pool, or with NULL, of the graphs' memory of the
// device; NULL if there is none. A record that is found without pool_mutex may end.
struct vg_pool *vg_pool_find(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle);

// vg_pool_made notes a new pool and where its memory lies.
void vg_pool_made(struct vg_state *state, CUmemoryPool handle, const CUmemPoolProps *properties);

// vg_pool_of is the record of a pool, or with NULL, of the graphs' memory of the
// device. `device` is where a pool lies that is neither known nor any device's.
// It is NULL where that GPU is not the container's, or there are more pools than
// can be followed.
struct vg_pool *vg_pool_of(struct vg_state *state, CUmemoryPool handle, CUdevice device);

// vg_pool_claim claims what the pool may grow by when `bytes` are asked of it.
// It returns 0, or the error for the caller.
CUresult vg_pool_claim(struct vg_claim *claim, struct vg_pool *pool, uint32_t way, uint64_t bytes);

// vg_pool_asked notes how many bytes are asked of the pool by a call whose claim is of none.
void vg_pool_asked(struct vg_claim *claim, uint64_t bytes);

// vg_pool_settle charges what the pool holds, after a call with this result, in place
// of the claim; all of the claim where the driver does not say. It returns false where
// that is more than the limit allows: the pool grew by more than could be foreseen.
bool vg_pool_settle(struct vg_claim *claim, CUresult result);

// vg_pool_keep promises a graph what it took of a device's memory of graphs and
// still owns (cu_graph.c), if no epoch has begun since. The driver need not be asked
// what the pool holds then: until vg_pool_kept it stays charged, and after it too,
// until the driver is asked the next time.
bool vg_pool_keep(struct vg_state *state, struct vg_pool *pool, uint64_t bytes, uint64_t epoch);
void vg_pool_kept(struct vg_state *state, struct vg_pool *pool, uint64_t bytes);

// vg_pool_life is which pool a record is of: that of a destroyed pool becomes another's.
static inline uint32_t vg_pool_life(const struct vg_state *state, const struct vg_pool *pool)
{
	return atomic_load(&state->pool_lives[pool - state->pools]);
}

// vg_pool_has_pointers reports whether pointers that were imported of a pool keep it. The
// caller holds pool_mutex.
static inline bool vg_pool_has_pointers(const struct vg_pool *pool)
{
	return pool->pointers || pool->arriving;
}

// vg_pool_release releases what a pool is charged with, and its record. The caller holds
// pool_mutex.
void vg_pool_release(struct vg_state *state, struct vg_pool *pool);

// vg_pool_opened notes the handle of a pool that was imported; what it holds is known with
// the first pointer.
void vg_pool_opened(struct vg_state *state, CUmemoryPool handle);

// vg_pool_imported is the record of an imported pool, of which a pointer was imported just now
// that lies on this device; NULL as vg_pool_of. The pool is charged with nothing more until
// vg_pool_claim_pointer has failed, or vg_pool_settle_pointer was called.
struct vg_pool *vg_pool_imported(struct vg_state *state, CUmemoryPool handle, CUdevice device);

// vg_pool_claim_pointer claims what an imported pool holds more with a pointer of so many
// bytes. vg_pool_settle_pointer charges it, as vg_pool_settle.
// vg_pool_drop_pointer takes the pointer back, if the pool's life is this.
CUresult vg_pool_claim_pointer(struct vg_claim *claim, struct vg_pool *pool, uint64_t bytes);
bool vg_pool_settle_pointer(struct vg_claim *claim, uint64_t bytes);
void vg_pool_drop_pointer(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes);

// vg_pools_refresh asks all pools of the process what they hold.
void vg_pools_refresh(struct vg_state *state);

// vg_pools_refresh_stale does so only if something was freed since.
void vg_pools_refresh_stale(struct vg_state *state);

// vg_pools_held asks what the pools of a device hold together. It returns false
// where one cannot be asked, as it was destroyed while in use.
bool vg_pools_held(struct vg_state *state, uint32_t device, uint64_t *held);

// vg_pools_ended notes that the primary context of a device has ended, and with it all that
// was allocated or imported of the device's pools.
void vg_pools_ended(struct vg_state *state, uint32_t device);

// vg_pools_trim makes the pools of a device return what they hold unused, and
// returns whether there were any.
bool vg_pools_trim(struct vg_state *state, uint32_t device);

// vg_pool_ending asks a pool that is about to be destroyed how much of it is in
// use, and keeps us from using it; NULL: it is not known. vg_pool_ended releases
// it if nothing was. One that is in use holds its memory until the last piece is
// freed (orphan.h); where that cannot be told, it stays charged.
struct vg_pool *vg_pool_ending(struct vg_state *state, CUmemoryPool handle, uint64_t *used);
void vg_pool_ended(struct vg_state *state, struct vg_pool *pool, uint64_t used, CUresult result);

#endif
