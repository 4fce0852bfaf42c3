// SPDX-License-Identifier: Apache-2.0
/* This file frees device memory of all kinds. */
#include "pool.h"
#include "sparse.h"

void sim_alloc_free(struct sim_alloc *alloc)
{
	if (alloc->kind == ALLOC_GRAPH) { /* the allocation's address remains with the graph */
		(void)sim_graph_memory_free(alloc);
		return;
	}
	if (alloc->kind == ALLOC_ARRAY)
		sim_tiles_end(alloc->address);
	if (alloc->memory)
		sim_memory_unmapped(alloc->memory);
	if (alloc->pool)
		sim_pool_give_back(alloc);
	else if (alloc->shared && alloc->kind == ALLOC_IMPORT)
		sim_share_drop(alloc->shared);
	else if (alloc->shared)
		sim_share_release(alloc->shared);
	else if (alloc->chunk)
		sim_chunk_leave(alloc);
	else if (alloc->charged)
		sim_uncharge(alloc->device, alloc->charged);
	sim_alloc_drop(alloc);
}

void sim_alloc_drop_context(struct sim_context *context)
{
	sim_lock();
	for (size_t i = sim_alloc_count(); i-- > 0;)
		if (sim_alloc_entry(i)->context == context)
			sim_alloc_free(sim_alloc_entry(i));
	sim_chunks_end(context);
	sim_unlock();
}

void sim_alloc_drop_pools(const struct sim_device *device)
{
	for (size_t i = sim_alloc_count(); i-- > 0;)
		if (sim_alloc_entry(i)->device == device &&
		    (sim_alloc_entry(i)->kind == ALLOC_POOL || sim_alloc_entry(i)->kind == ALLOC_GRAPH))
			sim_alloc_free(sim_alloc_entry(i));
}

void sim_pools_reset(struct sim_device *device)
{
	sim_lock();
	sim_alloc_drop_pools(device);
	sim_pools_trim(device, true);
	for (struct sim_pool *pool = sim_pool_first(); pool; pool = pool->next)
		if (pool->device == device && sim_pool_has_blocks(pool))
			sim_blocks_end(pool);
	sim_unlock();
}
