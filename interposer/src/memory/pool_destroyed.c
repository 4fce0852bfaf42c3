// SPDX-License-Identifier: Apache-2.0

#include "pool_destroyed.h"

#include <stdlib.h>

#include "base/mutex.h"
#include "base/number.h"
#include "driver/capture.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "pool.h"
#include "sizes.h"

// vg_leaving is a free that a stream has not reached yet.
struct vg_leaving {
	CUevent event;
	// bytes of an imported pointer, which count until the free; 0: not an imported pointer
	uint64_t pointer;
	struct vg_leaving *next;
};

// vg_never is the value of `remaining` of a pool whose frees the interposer cannot count. A pool
// with this value stays charged.
static const uint64_t vg_never = UINT64_MAX;

static bool vg_pool_is_destroyed(const struct vg_pool *pool)
{
	return pool->in_use && pool->left && !pool->on_host;
}

// vg_may_leave reports whether the interposer counts frees of a pool, because the pool was
// destroyed or is imported.
static bool vg_may_leave(const struct vg_pool *pool)
{
	return pool->in_use && !pool->on_host && (pool->left || pool->imported);
}

void vg_pool_destroyed_left(struct vg_state *state, struct vg_pool *pool, uint64_t bytes)
{
	pool->remaining = bytes;
	pool->left = true;
	atomic_fetch_add(&state->destroyed_pools, 1);
}

// vg_pool_destroyed_drop releases a destroyed pool. The caller holds pool_mutex.
static void vg_pool_destroyed_drop(struct vg_state *state, struct vg_pool *pool)
{
	vg_pool_release(state, pool);
	atomic_fetch_sub(&state->destroyed_pools, 1);
}

// vg_pool_destroyed_end releases a destroyed pool without remaining memory. Frees in progress keep
// the record until their streams have reached the frees. The record loses the handle, which the
// driver may reuse for another pool. The caller holds pool_mutex.
static void vg_pool_destroyed_end(struct vg_state *state, struct vg_pool *pool)
{
	pool->handle = NULL;
	pool->remaining = 0;
	pool->pointers = 0;
	if (!pool->leaving && !pool->arriving)
		vg_pool_destroyed_drop(state, pool);
}

// vg_pool_destroyed_gone also handles a pool whose destroying thread has not yet set `left`.
void vg_pool_destroyed_gone(struct vg_state *state, CUmemoryPool handle)
{
	for (uint32_t i = 0; i < state->pools_end; i++) {
		struct vg_pool *pool = &state->pools[i];

		if (!pool->in_use || !pool->destroyed || pool->handle != handle)
			continue;
		if (vg_pool_is_destroyed(pool))
			vg_pool_destroyed_end(state, pool);
		else
			pool->handle = NULL;
	}
}

void vg_pool_destroyed_ended(struct vg_state *state, uint32_t device)
{
	for (uint32_t i = 0; atomic_load(&state->destroyed_pools) && i < state->pools_end; i++) {
		struct vg_pool *pool = &state->pools[i];

		if (vg_pool_is_destroyed(pool) && pool->device == device)
			vg_pool_destroyed_end(state, pool);
	}
}

// vg_pool_destroyed_of returns the pool with this handle if the interposer counts the pool's frees,
// and NULL for any other handle.
static struct vg_pool *vg_pool_destroyed_of(struct vg_state *state, CUmemoryPool handle)
{
	struct vg_pool *pool = handle ? vg_pool_find(state, 0, handle) : NULL;

	if (pool)
		return pool->shareable ? pool : NULL;
	for (uint32_t i = 0; handle && i < state->pools_end; i++)
		if (vg_pool_is_destroyed(&state->pools[i]) && !state->pools[i].imported && state->pools[i].handle == handle)
			return &state->pools[i];
	return NULL;
}

struct vg_pool_piece vg_pool_destroyed_ask(struct vg_state *state, CUdeviceptr address)
{
	struct vg_pool_piece piece = {.pool = NULL};
	CUmemoryPool handle = NULL;
	size_t bytes = 0;

	if (VG_CALL(cuPointerGetAttribute, &handle, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) ||
	    VG_CALL(cuPointerGetAttribute, &bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address))
		return piece;
	piece.pool = vg_pool_destroyed_of(state, handle);
	piece.bytes = vg_round_up(bytes, vg_pool_part);
	if (!piece.pool)
		return piece;
	vg_mutex_lock(&state->pool_mutex);
	piece.life = vg_pool_life(state, piece.pool);
	piece.left = piece.pool->left;
	if (!piece.pool->in_use || piece.pool->handle != handle)
		piece.pool = NULL; // the pool ended meanwhile
	else if (!piece.left)
		vg_sizes_free(piece.pool, vg_sizes_round(piece.bytes));
	vg_mutex_unlock(&state->pool_mutex);
	return piece;
}

// vg_pool_destroyed_count counts a free. vg_pool_destroyed_count returns false if the pool is gone
// and another pool may have its record. The caller holds pool_mutex.
static bool vg_pool_destroyed_count(struct vg_state *state, const struct vg_pool_piece *piece)
{
	struct vg_pool *pool = piece->pool;

	if (!pool->in_use || pool->left != piece->left || vg_pool_life(state, pool) != piece->life)
		return false;
	if (!pool->left)
		vg_sizes_freed(pool, vg_sizes_round(piece->bytes), true);
	else if (pool->remaining != vg_never)
		pool->remaining -= vg_min(pool->remaining, piece->bytes);
	atomic_store(&state->stale_pools, 1);
	return true;
}

// vg_pool_destroyed_follow keeps a pool's record until a stream has reached the event.
static void vg_pool_destroyed_follow(struct vg_pool *pool, struct vg_leaving *leaving)
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

// vg_leaving_end drops a free whose event was recorded.
static void vg_leaving_end(struct vg_state *state, struct vg_leaving *leaving)
{
	if (leaving->pointer)
		atomic_fetch_sub(&state->pointers_leaving, 1);
	vg_leaving_drop(leaving, true);
}

void vg_pool_destroyed_forgo(struct vg_state *state, const struct vg_pool_piece *piece)
{
	struct vg_pool *pool = piece->pool;

	if (piece->left)
		return;
	vg_mutex_lock(&state->pool_mutex);
	if (pool->in_use && vg_pool_life(state, pool) == piece->life)
		vg_sizes_freed(pool, vg_sizes_round(piece->bytes), false);
	vg_mutex_unlock(&state->pool_mutex);
}

void vg_pool_destroyed_freed(struct vg_state *state, const struct vg_pool_piece *piece)
{
	vg_mutex_lock(&state->pool_mutex);
	vg_pool_destroyed_count(state, piece);
	vg_mutex_unlock(&state->pool_mutex);
	vg_pool_destroyed_look(state);
}

// vg_mark records an event behind all present work of a stream, and reports whether it succeeded.
static bool vg_mark(CUevent *event, CUstream stream, bool per_thread)
{
	CUcontext context = NULL;
	CUresult result;

	if (vg_handle_is_created(stream))
		VG_CALL(cuStreamGetCtx, stream, &context);
	if (vg_stream_event(event, vg_handle_key(context), CU_EVENT_DISABLE_TIMING))
		return false;
	result = vg_stream_record(*event, stream, per_thread);
	if (result)
		VG_CALL(cuEventDestroy_v2, *event);
	return !result;
}

void vg_pool_destroyed_freed_in(struct vg_state *state, const struct vg_pool_piece *piece, CUstream stream,
				bool per_thread)
{
	struct vg_leaving *leaving = piece->left ? calloc(1, sizeof *leaving) : NULL;
	bool marked = leaving && vg_mark(&leaving->event, stream, per_thread);
	bool counted;

	vg_mutex_lock(&state->pool_mutex);
	counted = vg_pool_destroyed_count(state, piece);
	if (counted && marked)
		vg_pool_destroyed_follow(piece->pool, leaving);
	else if (counted && piece->left)
		piece->pool->remaining = vg_never;
	vg_mutex_unlock(&state->pool_mutex);
	if (!counted || !marked)
		vg_leaving_drop(leaving, marked);
}

// If no event can be recorded behind a pointer's free, the pointer counts until its pool ends.
void vg_pool_destroyed_pointer_freed_in(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes,
					CUstream stream, bool per_thread)
{
	struct vg_leaving *leaving = calloc(1, sizeof *leaving);
	bool marked = leaving && vg_mark(&leaving->event, stream, per_thread);
	bool there;

	vg_mutex_lock(&state->pool_mutex);
	there = marked && pool->in_use && vg_pool_life(state, pool) == life;
	if (there) {
		leaving->pointer = bytes;
		vg_pool_destroyed_follow(pool, leaving);
		atomic_fetch_add(&state->pointers_leaving, 1);
		atomic_store(&state->stale_pools, 1);
	}
	vg_mutex_unlock(&state->pool_mutex);
	if (!there && leaving)
		vg_leaving_drop(leaving, marked);
}

// vg_leave drops the completed frees from a list, adds the bytes of their pointers to `pointers`,
// and returns the rest of the list. All frees of a destroyed stream are complete.
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

// vg_pool_destroyed_stays appends the remaining frees to the frees that other threads have added
// meanwhile. vg_pool_destroyed_stays reports whether the pool has frees in progress. The caller
// holds pool_mutex.
static bool vg_pool_destroyed_stays(struct vg_state *state, struct vg_pool *pool, struct vg_leaving *list)
{
	struct vg_leaving **end = &pool->leaving;

	while (*end)
		end = &(*end)->next;
	*end = list;
	if (pool->left && pool->remaining == 0 && !vg_pool_has_pointers(pool) && !pool->leaving)
		vg_pool_destroyed_drop(state, pool);
	return pool->leaving != NULL;
}

// vg_pool_destroyed_look_at removes the pool's completed frees, and reports whether the pool has
// frees in progress. vg_pool_destroyed_look_at takes the list of frees out of the pool, because
// vg_pool_destroyed_look_at queries the driver without the mutex. If the driver reuses the pool's
// handle meanwhile, the pool and its pieces have ended.
static bool vg_pool_destroyed_look_at(struct vg_state *state, struct vg_pool *pool)
{
	struct vg_leaving *list = NULL;
	uint64_t pointers = 0;
	uint32_t life;
	bool same;
	bool stays;

	vg_mutex_lock(&state->pool_mutex);
	life = vg_pool_life(state, pool);
	if (vg_may_leave(pool)) {
		list = pool->leaving;
		pool->leaving = NULL;
	}
	vg_mutex_unlock(&state->pool_mutex);
	list = vg_leave(state, list, &pointers);
	vg_mutex_lock(&state->pool_mutex);
	same = vg_may_leave(pool) && vg_pool_life(state, pool) == life;
	if (same)
		pool->pointers -= vg_min(pointers, pool->pointers);
	stays = same && vg_pool_destroyed_stays(state, pool, list);
	vg_mutex_unlock(&state->pool_mutex);
	while (!same && list) {
		struct vg_leaving *next = list->next;

		vg_leaving_end(state, list);
		list = next;
	}
	return stays;
}

bool vg_pool_destroyed_look(struct vg_state *state)
{
	bool left = false;
	int mode;

	if (!atomic_load(&state->destroyed_pools) && !atomic_load(&state->pointers_leaving))
		return false;
	if (!vg_mutex_try_lock(&state->destroyed_mutex))
		return true;
	// The program did not request these calls, which therefore must not break the capture of a
	// stream.
	mode = vg_capture_relax();
	if (mode >= 0) {
		for (uint32_t i = 0; i < state->pools_end; i++)
			left |= vg_pool_destroyed_look_at(state, &state->pools[i]);
		vg_capture_unrelax(mode);
	}
	vg_mutex_unlock(&state->destroyed_mutex);
	return left;
}
