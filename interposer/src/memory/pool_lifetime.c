// SPDX-License-Identifier: Apache-2.0

#include "pool_lifetime.h"

#include <time.h>

#include "base/mutex.h"
#include "driver/handle.h"
#include "pool.h"
#include "pool_destroyed.h"
#include "pool_held.h"
#include "sizes.h"

void vg_pool_lifetime_made(struct vg_state *state, CUmemoryPool handle, const CUmemPoolProps *properties)
{
	CUdevice device;
	// Managed memory may move to the device from any first place.
	bool on_host = !vg_handle_location(&properties->location, &device) &&
		       properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED;
	struct vg_pool *pool;

	vg_mutex_lock(&state->pool_mutex);
	vg_pool_destroyed_gone(state, handle);
	pool = vg_pool_follow(state, on_host ? 0 : device, handle);
	if (pool) {
		pool->on_host = on_host;
		vg_pool_share(state, pool, properties->handleTypes && !on_host);
	}
	vg_mutex_unlock(&state->pool_mutex);
}

void vg_pool_lifetime_opened(struct vg_state *state, CUmemoryPool handle)
{
	vg_mutex_lock(&state->pool_mutex);
	vg_pool_destroyed_gone(state, handle);
	vg_mutex_unlock(&state->pool_mutex);
}

// vg_pool_close prevents further calls of the interposer with the pool, and waits for the calls in
// progress.
static void vg_pool_close(struct vg_state *state, struct vg_pool *pool)
{
	const struct timespec nap = {.tv_nsec = 20000};

	vg_mutex_lock(&state->pool_mutex);
	pool->destroyed = true;
	vg_mutex_unlock(&state->pool_mutex);
	while (atomic_load(&pool->visits) & vg_visitors)
		nanosleep(&nap, NULL);
}

struct vg_pool *vg_pool_lifetime_ending(struct vg_state *state, CUmemoryPool handle, uint64_t *used)
{
	struct vg_pool_answer answer;
	struct vg_pool *pool;

	vg_mutex_lock(&state->pool_mutex);
	pool = vg_pool_find(state, 0, handle);
	vg_mutex_unlock(&state->pool_mutex);
	if (!pool)
		return NULL;
	answer = vg_pool_held_ask(pool, true);
	*used = answer.valid ? answer.used : UINT64_MAX;
	vg_pool_close(state, pool);
	return pool;
}

void vg_pool_lifetime_ended(struct vg_state *state, struct vg_pool *pool, uint64_t used, CUresult result)
{
	vg_mutex_lock(&state->pool_mutex);
	// A pool without a handle is gone, because the driver has reused the handle meanwhile.
	if (result && pool->handle) {
		pool->destroyed = false;
	} else if (pool->on_host || !pool->handle || (pool->imported ? !vg_pool_has_pointers(pool) : used == 0)) {
		vg_pool_release(state, pool);
	} else {
		vg_pool_destroyed_left(state, pool, pool->imported ? 0 : used);
	}
	vg_mutex_unlock(&state->pool_mutex);
}

// vg_pool_emptied drops the records of a pool's pieces and of the pointers that were imported from
// the pool. The entries of these pointers then belong to an earlier life of the record. The caller
// holds pool_mutex.
static void vg_pool_emptied(struct vg_state *state, struct vg_pool *pool)
{
	vg_sizes_emptied(pool);
	if (!pool->imported)
		return;
	pool->pointers = 0;
	atomic_fetch_add(&state->pool_lives[pool - state->pools], 1);
}

void vg_pool_lifetime_context_ended(struct vg_state *state, uint32_t device)
{
	vg_mutex_lock(&state->pool_mutex);
	vg_pool_destroyed_ended(state, device);
	for (uint32_t i = 0; i < state->pools_end; i++) {
		struct vg_pool *pool = &state->pools[i];

		if (pool->in_use && !pool->left && pool->device == device)
			vg_pool_emptied(state, pool);
	}
	vg_mutex_unlock(&state->pool_mutex);
}
