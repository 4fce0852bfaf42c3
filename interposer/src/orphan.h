// SPDX-License-Identifier: Apache-2.0

// Memory whose pool the program has destroyed: the driver keeps the pool until
// its last piece is freed, but answers no more questions about it. So what is
// freed of it is counted from here. So are pointers that were imported of a pool of
// another process (pointer.h).

#ifndef VG_ORPHAN_H
#define VG_ORPHAN_H

#include "claim.h"

// vg_orphan is a piece of such a pool, or of one whose pieces are counted (sizes.h), that is
// about to be freed; its pool is NULL for any other memory.
struct vg_orphan {
	struct vg_pool *pool;
	bool left; // the pool was destroyed
	uint32_t life; // of the record, which another pool may have by now
	uint64_t bytes;
};

// vg_orphan_left notes that a pool was destroyed while so much of it was in use.
// The caller holds pool_mutex.
void vg_orphan_left(struct vg_state *state, struct vg_pool *pool, uint64_t bytes);

// vg_orphan_gone releases what is charged for a destroyed pool of this handle:
// the driver has given the handle to another. The caller holds pool_mutex.
void vg_orphan_gone(struct vg_state *state, CUmemoryPool handle);

// vg_orphans_ended does so for all destroyed pools of a device: their pieces have gone with its
// primary context. The caller holds pool_mutex.
void vg_orphans_ended(struct vg_state *state, uint32_t device);

// vg_orphan_ask and vg_orphan_forgo do the work of the next two where there are such pools.
struct vg_orphan vg_orphan_ask(struct vg_state *state, CUdeviceptr address);
void vg_orphan_forgo(struct vg_state *state, const struct vg_orphan *orphan);

// vg_orphan_find returns what the driver is about to free. vg_orphan_kept or one of those below
// is to be called when the driver has returned. Most programs have no such pools.
static inline struct vg_orphan vg_orphan_find(struct vg_state *state, CUdeviceptr address)
{
	if (__builtin_expect(state && (atomic_load_explicit(&state->orphans, memory_order_relaxed) ||
				       atomic_load_explicit(&state->shareable_pools, memory_order_relaxed)), 0))
		return vg_orphan_ask(state, address);
	return (struct vg_orphan){.pool = NULL};
}

// vg_orphan_kept notes that the driver has not freed it.
static inline void vg_orphan_kept(struct vg_state *state, const struct vg_orphan *orphan)
{
	if (__builtin_expect(orphan->pool != NULL, 0))
		vg_orphan_forgo(state, orphan);
}

// vg_orphan_freed counts a piece that the driver has freed, and
// vg_orphan_freed_in one that it frees when a stream gets there.
void vg_orphan_freed(struct vg_state *state, const struct vg_orphan *orphan);
void vg_orphan_freed_in(struct vg_state *state, const struct vg_orphan *orphan, CUstream stream,
			bool per_thread);

// vg_pointer_freed_in counts an imported pointer of the pool with this life, of which a
// stream has yet to free so many bytes.
void vg_pointer_freed_in(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes,
			 CUstream stream, bool per_thread);

// vg_orphans_look releases what has gone, and returns whether streams have yet
// to free some.
bool vg_orphans_look(struct vg_state *state);

#endif
