// SPDX-License-Identifier: Apache-2.0
/* This file implements the list of pools, and the memory that pools keep. */
#include "pool.h"

static struct sim_pool *pools; /* under the process lock */

void sim_pool_list(struct sim_pool *pool)
{
	pool->next = pools;
	pools = pool;
}

void sim_pool_unlist(struct sim_pool *pool)
{
	struct sim_pool **link;

	for (link = &pools; *link && *link != pool; link = &(*link)->next)
		;
	if (*link)
		*link = pool->next;
}

struct sim_pool *sim_pool_first(void)
{
	return pools;
}

void sim_pool_trim_to(struct sim_pool *pool, uint64_t keep)
{
	uint64_t least = round_up(pool->used, POOL_STEP);

	if (keep < least)
		keep = least;
	keep = round_up(keep, POOL_STEP);
	if (pool->reserved <= keep || sim_pool_has_blocks(pool))
		return;
	sim_uncharge(pool->device, pool->reserved - keep);
	pool->reserved = keep;
}

void sim_pools_trim(struct sim_device *device, bool all)
{
	for (struct sim_pool *pool = pools; pool; pool = pool->next)
		if (pool->device == device && pool->reserved)
			sim_pool_trim_to(pool, all ? 0 : pool->threshold);
}

void sim_pools_synced(void)
{
	sim_lock();
	for (struct sim_pool *pool = pools; pool; pool = pool->next)
		if (pool->reserved > pool->threshold)
			sim_pool_trim_to(pool, pool->threshold);
	sim_unlock();
}

void sim_pool_reserved(struct sim_pool *pool, uint64_t bytes)
{
	pool->reserved += bytes;
	if (pool->reserved > pool->reserved_high)
		pool->reserved_high = pool->reserved;
}

void sim_pool_used(struct sim_pool *pool, uint64_t bytes)
{
	pool->used += bytes;
	if (pool->used > pool->used_high)
		pool->used_high = pool->used;
}
