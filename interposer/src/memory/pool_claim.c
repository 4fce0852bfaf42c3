// SPDX-License-Identifier: Apache-2.0

// This file implements borrowing: a request that fits into the unused memory of a pool claims
// nothing. The pool may return borrowed memory to the device, and the call may make the pool take
// the memory again. Therefore borrowed memory stays charged until the call settles.

#include "pool_claim.h"

#include "base/mutex.h"
#include "base/number.h"
#include "pages/limits.h"
#include "pages/usage.h"
#include "pool.h"
#include "pool_held.h"
#include "sizes.h"

// vg_pool_promise reserves bytes of a pool for a call if the pool's unused and unreserved memory
// suffices. vg_pool_promise sets `enough` if the memory suffices. vg_pool_promise returns false if
// a newer answer was applied, because the spare memory may have been used since.
static bool vg_pool_promise(struct vg_state *state, struct vg_pool *pool,
			    const struct vg_pool_answer *answer, uint64_t bytes, bool *enough)
{
	uint64_t taken = vg_add_saturating(answer->used, pool->borrowed);

	if (answer->ticket < pool->last.ticket)
		return false;
	if (pool->shareable)
		*enough = answer->held <= pool->charged &&
			  vg_sizes_lend(pool, vg_sizes_round(bytes), answer->held);
	else
		*enough = vg_add_saturating(taken, bytes) <= vg_min(answer->held, pool->charged);
	if (*enough) {
		pool->borrowed += bytes;
		if (!pool->handle)
			atomic_fetch_add(&state->graph_epoch, 1);
	}
	return true;
}

// vg_pool_borrow reserves bytes of a pool for a call if the pool's unused memory suffices.
// vg_pool_borrow reports whether it reserved the bytes.
static bool vg_pool_borrow(struct vg_state *state, struct vg_pool *pool, uint64_t bytes)
{
	bool enough = false;
	bool answered = false;

	if (vg_state_device(state, pool->ordinal) < 0)
		return false; // the container does not have the pool's GPU
	// An exportable pool lends nothing over the limit, because it never returns memory that a
	// driver took beyond the forecast.
	if (pool->shareable && vg_usage_memory(&state->pages, pool->device) >
				       vg_limits_memory(&state->pages, pool->device))
		return false;
	while (!answered) {
		struct vg_pool_answer answer = vg_pool_held_ask(pool, true);

		if (!answer.valid)
			return false;
		vg_mutex_lock(&state->pool_mutex);
		answered = vg_pool_promise(state, pool, &answer, vg_round_up(bytes, vg_pool_part),
					   &enough);
		vg_mutex_unlock(&state->pool_mutex);
	}
	return enough;
}

CUresult vg_pool_claim(struct vg_claim *claim, struct vg_pool *pool, uint32_t way, uint64_t bytes)
{
	struct vg_state *state = vg_state_ready();
	CUdevice device = pool->ordinal;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	// If the limit has room, the query for the pool's memory is unnecessary.
	result = vg_claim_at_once(claim, device, way, vg_round_up(bytes, vg_pool_granule));
	if (result && vg_pool_borrow(state, pool, bytes)) {
		result = vg_claim_on(claim, device, way, 0);
		claim->call.borrowed = vg_round_up(bytes, vg_pool_part);
	} else if (result) {
		result = vg_claim_on(claim, device, way, vg_round_up(bytes, vg_pool_granule));
	}
	claim->call.pool = pool;
	if (!result && bytes && pool->shareable)
		vg_pool_claim_asked(claim, bytes);
	return result;
}

void vg_pool_claim_asked(struct vg_claim *claim, uint64_t bytes)
{
	if (!claim->call.pool->shareable)
		return;
	claim->call.piece = vg_sizes_round(bytes);
	if (claim->call.borrowed)
		return; // vg_sizes_lend has counted the call
	vg_mutex_lock(&claim->state->pool_mutex);
	vg_sizes_ask(claim->call.pool, claim->call.piece);
	vg_mutex_unlock(&claim->state->pool_mutex);
}

bool vg_pool_claim_settle(struct vg_claim *claim, CUresult result)
{
	struct vg_pool *pool = claim->call.pool;
	struct vg_pool_answer answer;
	uint64_t beyond;

	claim->call.granted = result == CUDA_SUCCESS;
	answer = vg_pool_held_ask(pool, false);
	claim->call.claimed = claim->bytes;
	beyond = vg_pool_held_apply(claim->state, pool, &answer, &claim->call);
	claim->bytes = claim->call.claimed;
	vg_claim_void(claim);
	return !beyond || vg_usage_memory(&claim->state->pages, claim->device) <=
				  vg_limits_memory(&claim->state->pages, claim->device);
}

CUresult vg_pool_claim_pointer(struct vg_claim *claim, struct vg_pool *pool, uint64_t bytes)
{
	struct vg_state *state = vg_state_ready();
	struct vg_pool_answer answer;
	uint64_t due;
	uint64_t charged;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	answer = vg_pool_held_ask(pool, false);
	vg_mutex_lock(&state->pool_mutex);
	due = vg_max(answer.valid ? answer.held : 0, vg_add_saturating(pool->pointers, bytes));
	charged = pool->charged;
	vg_mutex_unlock(&state->pool_mutex);
	result = vg_claim_on(claim, pool->ordinal, VG_WAY_IMPORT, due - vg_min(due, charged));
	claim->call.pool = pool;
	if (!result)
		return result;
	vg_mutex_lock(&state->pool_mutex);
	vg_pool_held_arrived(pool);
	vg_mutex_unlock(&state->pool_mutex);
	return result;
}

// If the driver does not report the pool's memory, vg_pool_held_apply charges every pointer of the
// pool.
bool vg_pool_claim_settle_pointer(struct vg_claim *claim, uint64_t bytes)
{
	claim->call.pointers = bytes;
	return vg_pool_claim_settle(claim, CUDA_SUCCESS);
}

bool vg_pool_claim_keep(struct vg_state *state, struct vg_pool *pool, uint64_t bytes, uint64_t epoch)
{
	bool kept;

	vg_mutex_lock(&state->pool_mutex);
	kept = atomic_load(&state->graph_epoch) == epoch;
	if (kept)
		pool->borrowed += bytes;
	vg_mutex_unlock(&state->pool_mutex);
	return kept;
}

void vg_pool_claim_kept(struct vg_state *state, struct vg_pool *pool, uint64_t bytes)
{
	uint64_t ticket = UINT64_C(1) << vg_ticket_shift;

	vg_mutex_lock(&state->pool_mutex);
	ticket = (atomic_fetch_add(&pool->visits, ticket) + ticket) >> vg_ticket_shift;
	if (pool->last.held < pool->charged)
		atomic_store(&state->stale_pools, 1);
	pool->last = (struct vg_pool_answer){.ticket = ticket, .held = pool->charged, .valid = true};
	pool->borrowed -= vg_min(bytes, pool->borrowed);
	vg_mutex_unlock(&state->pool_mutex);
}
