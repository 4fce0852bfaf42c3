// SPDX-License-Identifier: Apache-2.0

// This header covers claims for the memory by which pools may grow.

#ifndef VG_POOL_CLAIM_H
#define VG_POOL_CLAIM_H

#include "claim.h"
#include "driver/driver.h"

// vg_pool_claim claims the most memory by which the pool may grow for a request of `bytes`.
// vg_pool_claim returns 0 or the error for the program.
CUresult vg_pool_claim(struct vg_claim *claim, struct vg_pool *pool, uint32_t way, uint64_t bytes);

// vg_pool_claim_asked records the bytes that a call requests from the pool, for a claim of 0 bytes.
void vg_pool_claim_asked(struct vg_claim *claim, uint64_t bytes);

// vg_pool_claim_settle replaces the claim, after a call with this result, by a charge of the memory
// that the pool holds. If the driver does not report the memory, vg_pool_claim_settle charges the
// whole claim. vg_pool_claim_settle returns false if the charge exceeds the limit, because the pool
// grew by more than the claim.
bool vg_pool_claim_settle(struct vg_claim *claim, CUresult result);

// vg_pool_claim_keep reserves graph memory that a graph still owns (cu_graph.c). vg_pool_claim_keep
// returns false if an epoch has begun since the graph took the memory. After vg_pool_claim_keep,
// the query of the driver is unnecessary. The memory stays charged until vg_pool_claim_kept, and
// then until the next query of the driver.
bool vg_pool_claim_keep(struct vg_state *state, struct vg_pool *pool, uint64_t bytes, uint64_t epoch);
void vg_pool_claim_kept(struct vg_state *state, struct vg_pool *pool, uint64_t bytes);

// vg_pool_claim_pointer claims the memory by which an imported pool grows with a pointer of this
// size. vg_pool_claim_settle_pointer settles that claim like vg_pool_claim_settle.
CUresult vg_pool_claim_pointer(struct vg_claim *claim, struct vg_pool *pool, uint64_t bytes);
bool vg_pool_claim_settle_pointer(struct vg_claim *claim, uint64_t bytes);

#endif
