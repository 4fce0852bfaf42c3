// SPDX-License-Identifier: Apache-2.0

// This file keeps answers about a pool in order. Without tickets, one thread could query the
// driver. A second thread could then make the pool grow, query the driver and apply its answer. The
// first thread would then apply a stale answer. Therefore each query first takes a ticket, and
// vg_pool_held_apply drops an answer if an answer with a later ticket was applied. The later answer
// includes all growth before the earlier ticket. Claims of calls in progress cover the growth after
// the later ticket.

#include "pool_held.h"

#include "base/mutex.h"
#include "base/number.h"
#include "correction.h"
#include "driver/capture.h"
#include "pages/reserve.h"
#include "pool.h"
#include "pool_destroyed.h"
#include "sizes.h"

// vg_pool_ref is a pool's record, with a copy of the record's fields.
struct vg_pool_ref {
	struct vg_pool *pool;
	CUmemoryPool handle;
	CUdevice ordinal;
	uint32_t device;
	bool destroyed;
};

// vg_pools_next finds the next pool with device memory at or behind the record *at, and moves *at
// behind that pool. vg_pools_next returns false after the last pool.
static bool vg_pools_next(struct vg_state *state, uint32_t *at, struct vg_pool_ref *ref)
{
	bool found = false;

	vg_mutex_lock(&state->pool_mutex);
	while (!found && *at < state->pools_end) {
		struct vg_pool *pool = &state->pools[(*at)++];

		found = pool->in_use && !pool->on_host;
		if (found)
			*ref = (struct vg_pool_ref){pool, pool->handle, pool->ordinal, pool->device,
						    pool->destroyed};
	}
	vg_mutex_unlock(&state->pool_mutex);
	return found;
}

// vg_pool_visit prevents the destruction of a pool until vg_pool_leave. vg_pool_visit returns false
// if the pool is gone.
static bool vg_pool_visit(struct vg_state *state, const struct vg_pool_ref *ref)
{
	bool there;

	vg_mutex_lock(&state->pool_mutex);
	there = ref->pool->in_use && !ref->pool->destroyed && ref->pool->handle == ref->handle;
	if (there)
		atomic_fetch_add(&ref->pool->visits, 1);
	vg_mutex_unlock(&state->pool_mutex);
	return there;
}

// vg_pool_enter takes a ticket, and prevents the destruction of the pool until vg_pool_leave.
// vg_pool_enter returns false if the destruction has begun: the destroying thread first sets
// `destroyed`, and then waits for visitors.
static bool vg_pool_enter(struct vg_pool *pool, uint64_t *ticket)
{
	uint64_t visit = (UINT64_C(1) << vg_ticket_shift) + 1;

	*ticket = (atomic_fetch_add(&pool->visits, visit) + visit) >> vg_ticket_shift;
	return pool->in_use && !pool->destroyed && !pool->on_host;
}

static void vg_pool_leave(struct vg_pool *pool)
{
	atomic_fetch_sub(&pool->visits, 1);
}

struct vg_pool_answer vg_pool_held_ask(struct vg_pool *pool, bool need_used)
{
	struct vg_pool_answer answer = {.knows_used = need_used || pool->borrowed};
	CUmemoryPool handle = pool->handle;
	CUdevice ordinal = pool->ordinal;

	if (!vg_pool_enter(pool, &answer.ticket)) {
		vg_pool_leave(pool);
		return answer;
	}
	if (handle)
		answer.valid = (!answer.knows_used ||
				!VG_CALL(cuMemPoolGetAttribute, handle,
					 CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &answer.used)) &&
			       !VG_CALL(cuMemPoolGetAttribute, handle,
					CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &answer.held);
	else
		answer.valid = (!answer.knows_used ||
				!VG_CALL(cuDeviceGetGraphMemAttribute, ordinal,
					 CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &answer.used)) &&
			       !VG_CALL(cuDeviceGetGraphMemAttribute, ordinal,
					CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &answer.held);
	vg_pool_leave(pool);
	return answer;
}

// vg_pool_due returns the charge for a pool: the memory that the pool holds, and the memory that
// the pool may take again for borrowers. `before` is the charge of the pool plus the claim that
// settles. The charge includes all pointers of an imported pool, whatever the driver reports.
static uint64_t vg_pool_due(const struct vg_pool *pool, uint64_t before)
{
	const struct vg_pool_answer *last = &pool->last;
	uint64_t promised = 0;

	// If the pool's used memory is not known, the charge does not fall.
	if (pool->borrowed && pool->shareable)
		promised = vg_sizes_due(pool);
	else if (pool->borrowed)
		promised = last->knows_used ? vg_round_up(last->used + pool->borrowed, vg_pool_granule) :
					      before;
	return vg_max(vg_max(last->held, pool->pointers), vg_min(promised, before));
}

void vg_pool_held_arrived(struct vg_pool *pool)
{
	if (pool->arriving)
		pool->arriving--;
}

// vg_pool_note marks an imported pool's charge as uncertain, so that the charge adds no credit
// while the exporter holds the memory.
static void vg_pool_note(struct vg_state *state, const struct vg_pool *pool, uint64_t before)
{
	if (!pool->imported)
		return;
	if (pool->charged > before)
		vg_correction_uncertain_made(state, pool->device, pool->charged - before);
	else
		vg_correction_uncertain_gone(state, pool->device, before - pool->charged);
}

uint64_t vg_pool_held_apply(struct vg_state *state, struct vg_pool *pool, const struct vg_pool_answer *answer,
			    struct vg_pool_call *call)
{
	uint64_t claimed = call ? call->claimed : 0;
	uint64_t charged;
	uint64_t before;
	uint64_t after;

	vg_mutex_lock(&state->pool_mutex);
	charged = pool->charged;
	before = charged + claimed;
	if (call) {
		if (call->piece)
			vg_sizes_end(pool, call->piece, call->granted, call->borrowed != 0,
				     answer->valid && answer->held > charged);
		if (call->borrowed)
			pool->borrowed -= vg_min(call->borrowed, pool->borrowed);
		if (call->pointers)
			vg_pool_held_arrived(pool);
		pool->pointers += call->pointers;
		call->borrowed = 0;
		call->claimed = 0;
	}
	if (pool->in_use) {
		if (answer->valid && answer->ticket > pool->last.ticket) {
			pool->last = *answer;
			if (call && answer->held > charged)
				call->grown = answer->held - charged;
		} else if (!answer->valid && call && call->granted) {
			pool->last.held = vg_max(pool->last.held, before);
			pool->last.knows_used = false;
		}
		pool->charged = vg_pool_due(pool, before);
		// Threads that import pointers claim and charge the pool's growth.
		if (pool->arriving && !call)
			pool->charged = vg_min(pool->charged, charged);
		vg_pool_note(state, pool, charged);
	}
	after = pool->charged;
	vg_reserve_settle(&state->pages, pool->device, claimed, after > charged ? after - charged : 0);
	if (after < charged)
		vg_reserve_release(&state->pages, pool->device, charged - after);
	vg_mutex_unlock(&state->pool_mutex);
	return after > before ? after - before : 0;
}

// vg_pool_refresh updates a pool's charge. vg_pool_refresh reports whether the pool holds unused
// memory, which the pool may return at a later synchronisation.
static bool vg_pool_refresh(struct vg_state *state, struct vg_pool *pool)
{
	struct vg_pool_answer answer = vg_pool_held_ask(pool, true);

	vg_pool_held_apply(state, pool, &answer, NULL);
	return answer.valid && answer.held > vg_round_up(answer.used, vg_pool_granule);
}

void vg_pool_held_refresh(struct vg_state *state)
{
	bool stale = vg_pool_destroyed_look(state);
	struct vg_pool_ref ref;
	uint32_t at = 0;

	while (vg_pools_next(state, &at, &ref))
		stale |= vg_pool_refresh(state, ref.pool);
	if (stale)
		atomic_store(&state->stale_pools, 1);
}

void vg_pool_held_refresh_stale(struct vg_state *state)
{
	if (atomic_load(&state->stale_pools) && atomic_exchange(&state->stale_pools, 0))
		vg_pool_held_refresh(state);
}

bool vg_pool_held_sum(struct vg_state *state, uint32_t device, uint64_t *held)
{
	struct vg_pool_ref ref;
	uint32_t at = 0;

	*held = 0;
	while (vg_pools_next(state, &at, &ref)) {
		struct vg_pool_answer answer;

		if (ref.device != device)
			continue;
		answer = vg_pool_held_ask(ref.pool, false);
		if (!answer.valid)
			return false;
		*held += answer.held;
	}
	return true;
}

// vg_pool_trim must not break the capture of a stream of any thread, because the program did not
// request the trim.
static void vg_pool_trim(struct vg_state *state, const struct vg_pool_ref *pool)
{
	int mode;

	if (!vg_pool_visit(state, pool))
		return;
	mode = vg_capture_relax();
	if (mode >= 0) {
		if (pool->handle)
			VG_CALL(cuMemPoolTrimTo, pool->handle, 0);
		else
			VG_CALL(cuDeviceGraphMemTrim, pool->ordinal);
		vg_capture_unrelax(mode);
	}
	vg_pool_leave(pool->pool);
}

bool vg_pool_held_trim(struct vg_state *state, uint32_t device)
{
	bool found = atomic_load(&state->destroyed_pools) != 0;
	struct vg_pool_ref ref;
	uint32_t at = 0;

	vg_pool_destroyed_look(state);
	while (vg_pools_next(state, &at, &ref)) {
		if (ref.destroyed || ref.device != device)
			continue;
		vg_pool_trim(state, &ref);
		if (!ref.handle)
			atomic_fetch_add(&state->graph_epoch, 1);
		vg_pool_refresh(state, ref.pool);
		found = true;
	}
	return found;
}

void vg_pool_held_drop_pointer(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes)
{
	bool there;

	vg_mutex_lock(&state->pool_mutex);
	there = pool->in_use && vg_pool_life(state, pool) == life;
	if (there)
		pool->pointers -= vg_min(bytes, pool->pointers);
	vg_mutex_unlock(&state->pool_mutex);
	if (!there)
		return;
	vg_pool_refresh(state, pool);
	vg_pool_destroyed_look(state);
}

