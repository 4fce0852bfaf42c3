// SPDX-License-Identifier: Apache-2.0

// This header covers exportable pools. The driver returns no memory of an exportable pool before
// the pool ends. The driver may reuse a freed piece only for a piece of the same size. Therefore
// the interposer counts the spare memory of a pool by size, and never counts too much. While a free
// is in progress, the freed piece counts neither as used nor as spare.
//
// A driver may keep pieces in another way. Therefore a pool lends nothing if the pool holds less
// than was counted, or has grown for a call that was lent a piece.
//
// The caller of each function holds pool_mutex.

#ifndef VG_SIZES_H
#define VG_SIZES_H

#include "state.h"

// vg_sizes_round returns the memory that a piece of this size takes of a pool.
uint64_t vg_sizes_round(uint64_t bytes);

// vg_sizes_ask counts a call that allocates a piece. vg_sizes_lend counts the call and lends the
// call a freed piece. vg_sizes_lend returns false if a pool that holds `held` bytes has no freed
// piece of this size.
void vg_sizes_ask(struct vg_pool *pool, uint64_t bytes);
bool vg_sizes_lend(struct vg_pool *pool, uint64_t bytes, uint64_t held);

// vg_sizes_end counts the end of the call. `granted` reports that the driver has allocated the
// piece. `lent` reports that the call was lent a piece, and `grown` reports that the pool has
// grown.
void vg_sizes_end(struct vg_pool *pool, uint64_t bytes, bool granted, bool lent, bool grown);

// vg_sizes_free counts a call that frees a piece. vg_sizes_freed counts the end of the call.
void vg_sizes_free(struct vg_pool *pool, uint64_t bytes);
void vg_sizes_freed(struct vg_pool *pool, uint64_t bytes, bool freed);

// vg_sizes_due returns the memory that the pool needs for its pieces and for calls that were lent a
// piece.
uint64_t vg_sizes_due(const struct vg_pool *pool);

// vg_sizes_emptied drops all pieces after the end of their context.
void vg_sizes_emptied(struct vg_pool *pool);

// vg_sizes_release frees the counts.
void vg_sizes_release(struct vg_pool *pool);

#endif
