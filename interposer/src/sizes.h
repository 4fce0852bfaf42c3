// SPDX-License-Identifier: Apache-2.0

// Pools that can be exported. The driver returns nothing of one before it ends, and a piece that
// was freed of it may serve a piece of the same size alone. So what such a pool has to spare is
// counted by size, and never counted too high: while frees are under way, their pieces count
// neither as used nor as spare.
//
// A driver may keep pieces in another way. Nothing is lent of a pool that holds less than was
// counted, or that has grown for a call which was lent a piece.
//
// The caller of each function holds pool_mutex.

#ifndef VG_SIZES_H
#define VG_SIZES_H

#include "claim.h"

// vg_sizes_round returns what a piece of so many bytes takes of such a pool.
uint64_t vg_sizes_round(uint64_t bytes);

// vg_sizes_ask counts a call that asks for a piece. vg_sizes_lend does so and lends the call a
// piece that was freed; it returns false where there is none in a pool that holds so much.
void vg_sizes_ask(struct vg_pool *pool, uint64_t bytes);
bool vg_sizes_lend(struct vg_pool *pool, uint64_t bytes, uint64_t held);

// vg_sizes_end counts the end of the call: `granted` reports whether the driver has allocated
// the piece, `lent` whether one was lent, `grown` whether the pool has grown.
void vg_sizes_end(struct vg_pool *pool, uint64_t bytes, bool granted, bool lent, bool grown);

// vg_sizes_free counts a call that frees a piece, and vg_sizes_freed its end.
void vg_sizes_free(struct vg_pool *pool, uint64_t bytes);
void vg_sizes_freed(struct vg_pool *pool, uint64_t bytes, bool freed);

// vg_sizes_due returns what the pool needs for its pieces and those of calls that were lent one.
uint64_t vg_sizes_due(const struct vg_pool *pool);

// vg_sizes_emptied forgets all pieces: they ended with their context.
void vg_sizes_emptied(struct vg_pool *pool);

// vg_sizes_release frees the counts.
void vg_sizes_release(struct vg_pool *pool);

#endif
