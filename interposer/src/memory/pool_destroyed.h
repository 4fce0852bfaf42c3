// SPDX-License-Identifier: Apache-2.0

// This header covers memory of pools that the program has destroyed. The driver keeps a destroyed
// pool until its last piece is freed, but answers no more questions about it. The interposer
// therefore counts the frees itself. The interposer also counts frees of pointers that were
// imported from pools of other processes (pointer.h).

#ifndef VG_POOL_DESTROYED_H
#define VG_POOL_DESTROYED_H

#include "driver/driver.h"
#include "state.h"

// vg_pool_piece is a piece that is about to be freed, of a destroyed pool or of a pool whose pieces
// are counted (sizes.h). `pool` is NULL for any other memory.
struct vg_pool_piece {
	struct vg_pool *pool;
	bool left; // the pool was already destroyed
	uint32_t life; // life of the record, which another pool may have by now
	uint64_t bytes;
};

// vg_pool_destroyed_left records that a pool was destroyed while this many bytes of it were in use.
// The caller holds pool_mutex.
void vg_pool_destroyed_left(struct vg_state *state, struct vg_pool *pool, uint64_t bytes);

// vg_pool_destroyed_gone releases the charge of a destroyed pool with this handle, because the
// driver has reused the handle. The caller holds pool_mutex.
void vg_pool_destroyed_gone(struct vg_state *state, CUmemoryPool handle);

// vg_pool_destroyed_ended does the same for all destroyed pools of a device: their pieces ended
// with its primary context. The caller holds pool_mutex.
void vg_pool_destroyed_ended(struct vg_state *state, uint32_t device);

// vg_pool_destroyed_ask and vg_pool_destroyed_forgo do the work of the next two functions in a
// process with pools of these kinds.
struct vg_pool_piece vg_pool_destroyed_ask(struct vg_state *state, CUdeviceptr address);
void vg_pool_destroyed_forgo(struct vg_state *state, const struct vg_pool_piece *piece);

// vg_pool_destroyed_find describes the piece that the driver is about to free. When the driver has
// returned, vg_pool_destroyed_kept or a function below it must be called. Most programs have no
// pools of these kinds.
static inline struct vg_pool_piece vg_pool_destroyed_find(struct vg_state *state, CUdeviceptr address)
{
	if (__builtin_expect(state && (atomic_load_explicit(&state->destroyed_pools, memory_order_relaxed) ||
				       atomic_load_explicit(&state->shareable_pools, memory_order_relaxed)), 0))
		return vg_pool_destroyed_ask(state, address);
	return (struct vg_pool_piece){.pool = NULL};
}

// vg_pool_destroyed_kept records that the driver has not freed the piece.
static inline void vg_pool_destroyed_kept(struct vg_state *state, const struct vg_pool_piece *piece)
{
	if (__builtin_expect(piece->pool != NULL, 0))
		vg_pool_destroyed_forgo(state, piece);
}

// vg_pool_destroyed_freed counts a piece that the driver has freed. vg_pool_destroyed_freed_in
// counts a piece that the driver frees when the stream reaches the free.
void vg_pool_destroyed_freed(struct vg_state *state, const struct vg_pool_piece *piece);
void vg_pool_destroyed_freed_in(struct vg_state *state, const struct vg_pool_piece *piece, CUstream stream,
				bool per_thread);

// vg_pool_destroyed_pointer_freed_in counts an imported pointer of this size, from the pool with
// this life, that a stream has yet to free.
void vg_pool_destroyed_pointer_freed_in(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes,
					CUstream stream, bool per_thread);

// vg_pool_destroyed_look releases the pieces that streams have freed, and reports whether more
// frees are outstanding.
bool vg_pool_destroyed_look(struct vg_state *state);

#endif
