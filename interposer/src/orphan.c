// SPDX-License-Identifier: Apache-2.0

#include "orphan.h"

#include <stdlib.h>

#include "capture.h"
#include "pool.h"
#include "reserve.h"
#include "sizes.h"
#include "stream.h"

// vg_leaving is a free that a stream has yet to come to.
struct vg_leaving {
	CUevent event;
	uint64_t pointer; // bytes of an imported pointer, which count until then; 0: no such
	struct vg_leaving *next;
};

// What is not known to be freed keeps its pool charged.
static const uint64_t vg_never = UINT64_MAX;

static bool vg_is_orphan(const struct vg_pool *pool)
{
	return pool->in_use && pool->left && !pool->on_host;
}

// vg_may_leave: frees are followed of pools that are gone, and of imported ones.
static bool vg_may_leave(const struct vg_pool *pool)
{
	return pool->in_use && !pool->on_host && (pool->left || pool->imported);
}

void vg_orphan_left(struct vg_state *state, struct vg_pool *pool, uint64_t bytes)
{
	pool->remaining = bytes;
	pool->left = true;
	atomic_fetch_add(&state->orphans, 1);
}

// vg_orphan_drop is called with pool_mutex held.
static void vg_orphan_drop(struct vg_state *state, struct vg_pool *pool)
{
	vg_pool_release(state, pool);
	atomic_fetch_sub(&state->orphans, 1);
}

// vg_orphan_end releases a destroyed pool of which nothing is left. Frees that were followed
// keep it until their streams have come to them, but it has no handle then: the driver may have
// given that to another. The caller holds pool_mutex.
static void vg_orphan_end(struct vg_state *state, struct vg_pool *pool)
{
	pool->handle = NULL;
	pool->remaining = 0;
	pool->pointers = 0;
	if (!pool->leaving && !pool->arriving)
		vg_orphan_drop(state, pool);
}

// A thread that destroys a pool may not have noted yet that it was left.
void vg_orphan_gone(struct vg_state *state, CUmemoryPool handle)
{
	for (uint32_t i = 0; i < state->pools_end; i++) {
		struct vg_pool *pool = &state->pools[i];

		if (!pool->in_use || !pool->destroyed || pool->handle != handle)
			continue;
		if (vg_is_orphan(pool))
			vg_orphan_end(state, pool);
		else
			pool->handle = NULL;
	}
}

void vg_orphans_ended(struct vg_state *state, uint32_t device)
{
	for (uint32_t i = 0; atomic_load(&state->orphans) && i < state->pools_end; i++) {
		struct vg_pool *pool = &state->pools[i];

		if (vg_is_orphan(pool) && pool->device == device)
			vg_orphan_end(state, pool);
	}
}

// vg_orphan_pool finds the pool of a piece whose free is to be counted.
static struct vg_pool *vg_orphan_pool(struct vg_state *state, CUmemoryPool handle)
{
	struct vg_pool *pool = handle ? vg_pool_find(state, 0, handle) : NULL;

	if (pool)
		return pool->shareable ? pool : NULL;
	for (uint32_t i = 0; handle && i < state->pools_end; i++)
		if (vg_is_orphan(&state->pools[i]) && !state->pools[i].imported && state->pools[i].handle == handle)
			return &state->pools[i];
	return NULL;
}

struct vg_orphan vg_orphan_ask(struct vg_state *state, CUdeviceptr address)
{
	struct vg_orphan orphan = {.pool = NULL};
	CUmemoryPool handle = NULL;
	size_t bytes = 0;

	if (VG_CALL(cuPointerGetAttribute, &handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ||
	    VG_CALL(cuPointerGetAttribute, &bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address))
		return orphan;
	orphan.pool = vg_orphan_pool(state, handle);
	orphan.bytes = vg_round_up(bytes, vg_pool_part);
	if (!orphan.pool)
		return orphan;
	vg_lock(&state->pool_mutex);
	orphan.life = vg_pool_life(state, orphan.pool);
	orphan.left = orphan.pool->left;
	if (!orphan.pool->in_use || orphan.pool->handle != handle)
		orphan.pool = NULL; // it ended meanwhile
	else if (!orphan.left)
		vg_sizes_free(orphan.pool, vg_sizes_round(orphan.bytes));
	vg_unlock(&state->pool_mutex);
	return orphan;
}

// vg_orphan_count returns false where the pool is gone by now, and its record may be
// another's. The caller holds pool_mutex.
static bool vg_orphan_count(struct vg_state *state, const struct vg_orphan *orphan)
{
	struct vg_pool *pool = orphan->pool;

	if (!pool->in_use || pool->left != orphan->left || vg_pool_life(state, pool) != orphan->life)
		return false;
	if (!pool->left)
		vg_sizes_freed(pool, vg_sizes_round(orphan->bytes), true);
	else if (pool->remaining != vg_never)
		pool->remaining -= vg_min(pool->remaining, orphan->bytes);
	atomic_store(&state->stale_pools, 1);
	return true;
}

// vg_orphan_follow has a destroyed pool stay until the stream has come to the event.
static void vg_orphan_follow(struct vg_pool *pool, struct vg_leaving *leaving)
{
	leaving->next = pool->leaving;
	pool->leaving = leaving;
}

static void vg_leaving_drop(struct vg_leaving *leaving, bool marked)
{
	if (marked)
		VG_CALL(cuEventDestroy_v2, leaving->event);
	free(leaving);
}

// vg_leaving_end drops one that was followed.
static void vg_leaving_end(struct vg_state *state, struct vg_leaving *leaving)
{
	if (leaving->pointer)
		atomic_fetch_sub(&state->pointers_leaving, 1);
	vg_leaving_drop(leaving, true);
}

void vg_orphan_forgo(struct vg_state *state, const struct vg_orphan *orphan)
{
	struct vg_pool *pool = orphan->pool;

	if (orphan->left)
		return;
	vg_lock(&state->pool_mutex);
	if (pool->in_use && vg_pool_life(state, pool) == orphan->life)
		vg_sizes_freed(pool, vg_sizes_round(orphan->bytes), false);
	vg_unlock(&state->pool_mutex);
}

void vg_orphan_freed(struct vg_state *state, const struct vg_orphan *orphan)
{
	vg_lock(&state->pool_mutex);
	vg_orphan_count(state, orphan);
	vg_unlock(&state->pool_mutex);
	vg_orphans_look(state);
}

// vg_mark puts an event behind all that a stream has to do.
static bool vg_mark(CUevent *event, CUstream stream, bool per_thread)
{
	CUresult result = vg_stream_event(event, stream);

	if (result)
		return false;
	if (per_thread)
		result = VG_CALL(cuEventRecord_ptsz, *event, stream);
	else
		result = VG_CALL(cuEventRecord, *event, stream);
	if (result)
		VG_CALL(cuEventDestroy_v2, *event);
	return !result;
}

void vg_orphan_freed_in(struct vg_state *state, const struct vg_orphan *orphan, CUstream stream,
			bool per_thread)
{
	struct vg_leaving *leaving = orphan->left ? calloc(1, sizeof *leaving) : NULL;
	bool marked = leaving && vg_mark(&leaving->event, stream, per_thread);
	bool counted;

	vg_lock(&state->pool_mutex);
	counted = vg_orphan_count(state, orphan);
	if (counted && marked)
		vg_orphan_follow(orphan->pool, leaving);
	else if (counted && orphan->left)
		orphan->pool->remaining = vg_never;
	vg_unlock(&state->pool_mutex);
	if (!counted || !marked)
		vg_leaving_drop(leaving, marked);
}

// A pointer of which it is not known when it is freed counts as long as its pool.
void vg_pointer_freed_in(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes,
			 CUstream stream, bool per_thread)
{
	struct vg_leaving *leaving = calloc(1, sizeof *leaving);
	bool marked = leaving && vg_mark(&leaving->event, stream, per_thread);
	bool there;

	vg_lock(&state->pool_mutex);
	there = marked && pool->in_use && vg_pool_life(state, pool) == life;
	if (there) {
		leaving->pointer = bytes;
		vg_orphan_follow(pool, leaving);
		atomic_fetch_add(&state->pointers_leaving, 1);
		atomic_store(&state->stale_pools, 1);
	}
	vg_unlock(&state->pool_mutex);
	if (!there && leaving)
		vg_leaving_drop(leaving, marked);
}

// vg_leave drops those that have been freed from a list, and returns the rest. A
// stream that is gone has done all that it had to. It counts the pointers among them.
static struct vg_leaving *vg_leave(struct vg_state *state, struct vg_leaving *list, uint64_t *pointers)
{
	struct vg_leaving *rest = NULL;

	while (list) {
		struct vg_leaving *next = list->next;

		if (VG_CALL(cuEventQuery, list->event) == CUDA_ERROR_NOT_READY) {
			list->next = rest;
			rest = list;
		} else {
			*pointers += list->pointer;
			vg_leaving_end(state, list);
		}
		list = next;
	}
	return rest;
}

// vg_orphan_stays puts back what is left of the frees that were taken out, before
// which others may have put theirs, and says whether the pool is to be looked at again.
// The caller holds pool_mutex.
static bool vg_orphan_stays(struct vg_state *state, struct vg_pool *pool, struct vg_leaving *list)
{
	struct vg_leaving **end = &pool->leaving;

	while (*end)
		end = &(*end)->next;
	*end = list;
	if (pool->left && pool->remaining == 0 && !vg_pool_has_pointers(pool) && !pool->leaving)
		vg_orphan_drop(state, pool);
	return pool->leaving != NULL;
}

// vg_orphan_look asks without the mutex, for which it takes the list out. The pool may
// be gone when it comes back, as its handle was given out again: so are its pieces.
static bool vg_orphan_look(struct vg_state *state, struct vg_pool *pool)
{
	struct vg_leaving *list = NULL;
	uint64_t pointers = 0;
	uint32_t life;
	bool same;
	bool stays;

	vg_lock(&state->pool_mutex);
	life = vg_pool_life(state, pool);
	if (vg_may_leave(pool)) {
		list = pool->leaving;
		pool->leaving = NULL;
	}
	vg_unlock(&state->pool_mutex);
	list = vg_leave(state, list, &pointers);
	vg_lock(&state->pool_mutex);
	same = vg_may_leave(pool) && vg_pool_life(state, pool) == life;
	if (same)
		pool->pointers -= vg_min(pointers, pool->pointers);
	stays = same && vg_orphan_stays(state, pool, list);
	vg_unlock(&state->pool_mutex);
	while (!same && list) {
		struct vg_leaving *next = list->next;

		vg_leaving_end(state, list);
		list = next;
	}
	return stays;
}

bool vg_orphans_look(struct vg_state *state)
{
	bool left = false;
	int mode;

	if (!atomic_load(&state->orphans) && !atomic_load(&state->pointers_leaving))
		return false;
	if (!vg_try_lock(&state->orphan_mutex))
		return true;
	// Not a call of the program's: it must not break the capture of a stream.
	mode = vg_relax();
	if (mode >= 0) {
		for (uint32_t i = 0; i < state->pools_end; i++)
			left |= vg_orphan_look(state, &state->pools[i]);
		vg_unrelax(mode);
	}
	vg_unlock(&state->orphan_mutex);
	return left;
}
