// SPDX-License-Identifier: Apache-2.0
/* This file implements the memory of pools that can be shared (pool.h). */
#include "pool.h"

#include <stdlib.h>

struct sim_block *sim_block_add(struct sim_pool *pool, uint64_t size, uint64_t key)
{
	struct sim_block *block = calloc(1, sizeof(*block));

	if (!block)
		return NULL;
	*block = (struct sim_block){.next = pool->blocks, .size = size, .key = key};
	pool->blocks = block;
	sim_pool_reserved(pool, size);
	return block;
}

static struct sim_block *free_block(const struct sim_pool *pool, uint64_t size)
{
	for (struct sim_block *block = pool->blocks; block; block = block->next)
		if (!block->in_use && block->size == size)
			return block;
	return NULL;
}

static CUresult charge(struct sim_pool *pool, uint64_t size)
{
	CUresult err;

	if (pool->max_size && pool->reserved + size > pool->max_size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	err = sim_charge(pool->device, size);
	if (err != CUDA_ERROR_OUT_OF_MEMORY)
		return err;
	sim_pools_trim(pool->device, true);
	return sim_charge(pool->device, size);
}

struct sim_block *sim_block_take(struct sim_pool *pool, uint64_t size, CUresult *err)
{
	uint64_t whole = round_up(size, POOL_STEP);
	struct sim_block *block = free_block(pool, whole);

	*err = block ? CUDA_SUCCESS : charge(pool, whole);
	if (*err)
		return NULL;
	if (!block)
		block = sim_block_add(pool, whole, sim.next_id++);
	if (block) {
		block->in_use = true;
		return block;
	}
	sim_uncharge(pool->device, whole);
	*err = CUDA_ERROR_OUT_OF_MEMORY;
	return NULL;
}

void sim_blocks_end(struct sim_pool *pool)
{
	while (pool->blocks) {
		struct sim_block *block = pool->blocks;

		pool->blocks = block->next;
		if (pool->imported)
			sim_share_drop(block->shared);
		else if (block->shared)
			sim_share_release(block->shared);
		else
			sim_uncharge(pool->device, block->size);
		free(block);
	}
	pool->reserved = 0;
}
