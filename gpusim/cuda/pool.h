// SPDX-License-Identifier: Apache-2.0
/* This header declares memory pools, for the calls of pools (pool.c, poolkeep.c, block.c) and for
 * sharing (poolshare.c). */
#ifndef GPUSIM_POOL_H
#define GPUSIM_POOL_H

#include "share.h"

#define POOL_STEP (UINT64_C(2) << 20) /* a pool reserves memory in steps of this size */
#define POOL_PART UINT64_C(512)

/*
 * sim_block is physical memory of a pool that can be shared. Each allocation has a block. The pool
 * keeps the block for later allocations until the pool ends, as a driver does. A pool that imported
 * an allocation also keeps the allocation's block.
 */
struct sim_block {
	struct sim_block *next;
	uint64_t size;
	uint64_t key; /* in the process that created the block */
	uint64_t shared; /* id of memory that was exported or imported, see share.h */
	bool in_use; /* of a block that was created here */
};

struct sim_pool {
	struct sim_pool *next;
	uint32_t magic;
	bool is_default;
	bool destroyed;
	bool exported; /* a handle of the pool was exported */
	bool imported;
	int handle_types; /* with which the pool can be exported */
	struct sim_device *device;
	uint64_t reserved, used, reserved_high, used_high;
	uint64_t threshold, max_size;
	int reuse[3];
	CUmemAccessDesc access;
	struct sim_block *blocks;
	struct sim_share origin; /* for an imported pool, the exporter's */
};

/* sim_pool_of returns the pool of a handle. */
CUresult sim_pool_of(CUmemoryPool handle, struct sim_pool **pool);
/* sim_pool_current returns the pool for a device's allocations without a named pool. */
CUresult sim_pool_current(struct sim_device *device, struct sim_pool **pool);

/* ---- the caller of the functions below holds the process lock ---- */

struct sim_pool *sim_pool_new(struct sim_device *device);

/* sim_pool_list adds a pool to the list of all pools, sim_pool_unlist removes a pool, and
 * sim_pool_first returns the first pool. */
void sim_pool_list(struct sim_pool *pool);
void sim_pool_unlist(struct sim_pool *pool);
struct sim_pool *sim_pool_first(void);

/* sim_pool_trim_to releases the reserved bytes above both `keep` and the used bytes. */
void sim_pool_trim_to(struct sim_pool *pool, uint64_t keep);

/* These functions count additional bytes of a pool. */
void sim_pool_reserved(struct sim_pool *pool, uint64_t bytes);
void sim_pool_used(struct sim_pool *pool, uint64_t bytes);

/* sim_pool_has_blocks reports whether the pool's memory consists of blocks. */
static inline bool sim_pool_has_blocks(const struct sim_pool *pool)
{
	return pool->handle_types || pool->imported;
}

/* sim_block_add returns a new block, or NULL without memory for the block. */
struct sim_block *sim_block_add(struct sim_pool *pool, uint64_t size, uint64_t key);
/* sim_block_take returns a block for an allocation of this size, or returns NULL and sets *err. */
struct sim_block *sim_block_take(struct sim_pool *pool, uint64_t size, CUresult *err);
/* sim_blocks_end frees all blocks of a pool, or drops the imports of an imported pool. */
void sim_blocks_end(struct sim_pool *pool);

#endif
