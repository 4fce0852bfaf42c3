// SPDX-License-Identifier: Apache-2.0

// This header covers memory of pools that the program has destroyed. The driver keeps a destroyed
// pool until the pool's last piece is freed, but refuses queries about the pool. The interposer
// therefore counts the frees. The interposer also counts frees of pointers that were imported from
// pools of other processes (pointer.h).

#ifndef VG_POOL_DESTROYED_H
#define VG_POOL_DESTROYED_H

#include "driver/driver.h"
#include "state.h"

// vg_pool_piece is a piece that is about to be freed, of a destroyed pool or of an exportable pool
// (sizes.h). `pool` is NULL for any other memory.
struct vg_pool_piece {
	struct vg_pool *pool;
	bool left; // the pool was already destroyed
	uint32_t life; // life of the record, which another pool may have by now
	uint64_t bytes;
};

// vg_pool_destroyed_left records that a pool was destroyed while `bytes` of its memory were in use.
// The caller holds pool_mutex.
void vg_pool_destroyed_left(struct vg_state *state, struct vg_pool *pool, uint64_t bytes);

// vg_pool_destroyed_gone releases the charge of a destroyed pool with this handle, because the
// driver has reused the handle. The caller holds pool_mutex.
void vg_pool_destroyed_gone(struct vg_state *state, CUmemoryPool handle);

// vg_pool_destroyed_ended releases the charges of all destroyed pools of a device, whose pieces
// ended with the device's primary context. The caller holds pool_mutex.
void vg_pool_destroyed_ended(struct vg_state *state, uint32_t device);

// vg_pool_destroyed_ask and vg_pool_destroyed_forgo implement vg_pool_destroyed_find and
// vg_pool_destroyed_kept in a process with destroyed or exportable pools.
struct vg_pool_piece vg_pool_destroyed_ask(struct vg_state *state, CUdeviceptr address);
void vg_pool_destroyed_forgo(struct vg_state *state, const struct vg_pool_piece *piece);

// vg_pool_destroyed_find returns the piece that the driver is about to free. After the driver's
// call, the caller must call vg_pool_destroyed_kept, vg_pool_destroyed_freed or
// vg_pool_destroyed_freed_in. Most programs have neither destroyed nor exportable pools.
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

// vg_pool_destroyed_pointer_freed_in counts an imported pointer of this size that the driver frees
// when the stream reaches the free. The pointer is from the pool with this life.
void vg_pool_destroyed_pointer_freed_in(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes,
					CUstream stream, bool per_thread);

// vg_pool_destroyed_look releases the pieces that streams have freed, and reports whether more
// frees are outstanding.
bool vg_pool_destroyed_look(struct vg_state *state);

#endif
