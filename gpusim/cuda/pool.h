// SPDX-License-Identifier: Apache-2.0
/* A memory pool, as its own calls see it (pool.c) and those that share it (poolshare.c). */
#ifndef GPUSIM_POOL_H
#define GPUSIM_POOL_H

#include "share.h"

#define POOL_STEP (UINT64_C(2) << 20) /* a pool reserves memory in steps of this */
#define POOL_PART UINT64_C(512)

/*
 * Physical memory of a pool that can be shared: each piece has a block. The pool keeps
 * it for later pieces until it ends itself, as a driver does; so does a pool that
 * imported a piece of it.
 */
struct sim_block {
	struct sim_block *next;
	uint64_t size;
	uint64_t key; /* in the process that made it */
	uint64_t shared; /* id of memory that was exported or imported, see share.h */
	bool in_use; /* of one that was made here */
};

struct sim_pool {
	struct sim_pool *next;
	uint32_t magic;
	bool is_default;
	bool destroyed;
	bool exported; /* a handle of it was handed out */
	bool imported;
	int handle_types; /* by which it can be exported */
	struct sim_device *device;
	uint64_t reserved, used, reserved_high, used_high;
	uint64_t threshold, max_size;
	int reuse[3];
	CUmemAccessDesc access;
	struct sim_block *blocks;
	struct sim_share origin; /* of an imported pool: its exporter's */
};

/* The pool that a handle names. */
CUresult sim_pool_of(CUmemoryPool handle, struct sim_pool **pool);
/* The pool that a device's allocations come from where they name none. */
CUresult sim_pool_current(struct sim_device *device, struct sim_pool **pool);

/* ---- all others are called under the process lock ---- */

struct sim_pool *sim_pool_new(struct sim_device *device);

/* Counts bytes that a pool has more of. */
void sim_pool_reserved(struct sim_pool *pool, uint64_t bytes);
void sim_pool_used(struct sim_pool *pool, uint64_t bytes);

/* Whether its memory lies in blocks. */
static inline bool sim_pool_has_blocks(const struct sim_pool *pool)
{
	return pool->handle_types || pool->imported;
}

/* A block for a piece of this size; NULL with *err set. */
struct sim_block *sim_block_take(struct sim_pool *pool, uint64_t size, CUresult *err);
/* Gives all blocks of a pool back, or lets go of them where they were imported. */
void sim_blocks_end(struct sim_pool *pool);

#endif
