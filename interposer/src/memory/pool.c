// SPDX-License-Identifier: Apache-2.0

#include "pool.h"

#include "base/log.h"
#include "base/mutex.h"
#include "base/number.h"
#include "correction.h"
#include "pages/reserve.h"
#include "sizes.h"

static bool vg_pool_is(const struct vg_pool *pool, CUdevice ordinal, CUmemoryPool handle)
{
	return pool->in_use && !pool->destroyed && pool->handle == handle &&
	       (handle || pool->ordinal == ordinal);
}

static _Atomic uint32_t *vg_pool_hint(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle)
{
	uint64_t key = handle ? (uint64_t)(uintptr_t)handle : (uint64_t)ordinal;

	return &state->pool_hints[(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) % vg_pool_hints];
}

struct vg_pool *vg_pool_find(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle)
{
	uint32_t end = state->pools_end;
	_Atomic uint32_t *hint;
	uint32_t first;

	if (vg_pool_is(&state->pools[0], ordinal, handle)) // most programs have one pool
		return &state->pools[0];
	hint = vg_pool_hint(state, ordinal, handle);
	first = *hint;
	if (vg_pool_is(&state->pools[first], ordinal, handle))
		return &state->pools[first];
	for (uint32_t i = 0; i < end; i++) {
		if (!vg_pool_is(&state->pools[i], ordinal, handle))
			continue;
		*hint = i;
		return &state->pools[i];
	}
	return NULL;
}

struct vg_pool *vg_pool_follow(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle)
{
	struct vg_pool *known = vg_pool_find(state, ordinal, handle);

	if (known)
		return known;
	for (uint32_t i = state->pools_free; i < vg_max_pools; i++) {
		struct vg_pool *pool = &state->pools[i];

		if (pool->in_use)
			continue;
		// The record may have belonged to another pool. With a higher life and a higher ticket,
		// answers about the other pool are stale.
		pool->handle = handle;
		pool->ordinal = ordinal;
		pool->device = (uint32_t)vg_state_device(state, ordinal);
		pool->on_host = pool->destroyed = false;
		pool->charged = pool->borrowed = pool->pointers = 0;
		pool->arriving = 0;
		pool->imported = pool->shareable = pool->unlike = false;
		pool->left = false;
		pool->sizes = NULL;
		pool->leaving = NULL;
		atomic_fetch_add(&state->pool_lives[i], 1);
		pool->last = (struct vg_pool_answer){.ticket = atomic_load(&pool->visits) >> vg_ticket_shift};
		pool->in_use = true;
		state->pools_free = i + 1;
		if (i >= state->pools_end)
			state->pools_end = i + 1;
		return pool;
	}
	return NULL;
}

static struct vg_pool *vg_pool_follow_or_say(struct vg_state *state, CUdevice ordinal, CUmemoryPool handle)
{
	struct vg_pool *pool;

	vg_mutex_lock(&state->pool_mutex);
	pool = vg_pool_follow(state, ordinal, handle);
	vg_mutex_unlock(&state->pool_mutex);
	if (!pool)
		vg_log(VG_LOG_POOLS,
		       "refused memory of a memory pool: this process has %d pools, and nri-vgpu records no more:  "
		       "destroy some", vg_max_pools);
	return pool;
}

void vg_pool_share(struct vg_state *state, struct vg_pool *pool, bool shareable)
{
	atomic_fetch_sub(&state->shareable_pools, pool->shareable);
	vg_sizes_release(pool);
	pool->unlike = false;
	pool->shareable = shareable;
	atomic_fetch_add(&state->shareable_pools, shareable);
}

// vg_pool_of_device sets `device` to the device that has the pool as its default pool, if any.
static void vg_pool_of_device(CUmemoryPool handle, CUdevice *device)
{
	int count = 0;

	VG_CALL(cuDeviceGetCount, &count);
	for (CUdevice i = 0; i < count; i++) {
		CUmemoryPool pool = NULL;

		if (VG_CALL(cuDeviceGetDefaultMemPool, &pool, i) == CUDA_SUCCESS && pool == handle)
			*device = i;
	}
}

struct vg_pool *vg_pool_of(struct vg_state *state, CUmemoryPool handle, CUdevice device)
{
	struct vg_pool *pool = vg_pool_find(state, device, handle);

	if (pool)
		return pool;
	if (handle)
		vg_pool_of_device(handle, &device);
	if (vg_state_device(state, device) < 0)
		return NULL;
	return vg_pool_follow_or_say(state, device, handle);
}

// vg_pool_place moves a pool without charges to a device. vg_pool_place returns false if the pool
// has charges on another device.
static bool vg_pool_place(struct vg_state *state, struct vg_pool *pool, CUdevice ordinal)
{
	uint32_t device = (uint32_t)vg_state_device(state, ordinal);

	if (pool->device != device && !pool->charged && !pool->borrowed) {
		pool->ordinal = ordinal;
		pool->device = device;
	}
	return pool->device == device;
}

struct vg_pool *vg_pool_imported(struct vg_state *state, CUmemoryPool handle, CUdevice device)
{
	struct vg_pool *pool = vg_pool_of(state, handle, device);
	bool there;

	if (!pool)
		return NULL;
	vg_mutex_lock(&state->pool_mutex);
	there = pool->in_use && !pool->destroyed && pool->handle == handle &&
		vg_pool_place(state, pool, device);
	if (there && !pool->imported) {
		vg_correction_uncertain_made(state, pool->device, pool->charged);
		pool->imported = true;
		pool->on_host = false;
	}
	if (there)
		pool->arriving++;
	vg_mutex_unlock(&state->pool_mutex);
	return there ? pool : NULL;
}

void vg_pool_release(struct vg_state *state, struct vg_pool *pool)
{
	vg_reserve_release(&state->pages, pool->device, pool->on_host ? 0 : pool->charged);
	if (pool->imported)
		vg_correction_uncertain_gone(state, pool->device, pool->charged);
	vg_pool_share(state, pool, false);
	pool->in_use = false;
	state->pools_free = (uint32_t)vg_min(state->pools_free, (uint64_t)(pool - state->pools));
	while (state->pools_end && !state->pools[state->pools_end - 1].in_use)
		state->pools_end--;
}

