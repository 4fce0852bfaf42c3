// SPDX-License-Identifier: Apache-2.0

// Answers about a pool may arrive out of order: a thread asks, another makes
// the pool grow, asks and applies its answer, and then the first applies an old
// one. So each question has a ticket, taken before it is asked, and an answer
// is dropped where one with a later ticket was applied: that one was given
// later than any growth before the earlier ticket, and holds in its place. Growth
// after it is covered by the claims of the calls that cause it, until they settle.
//
// A request that fits into what a pool holds and does not use claims nothing:
// it borrows. What is borrowed stays charged until the call settles, even if
// the pool returns it to the device in the meantime, as the call may make the
// pool take it again.

#include "pool.h"

#include <time.h>

#include "capture.h"
#include "correction.h"
#include "orphan.h"
#include "reserve.h"
#include "sizes.h"

// A pool grows by whole granules of the driver's virtual memory.
static const uint64_t vg_pool_granule = 2 * VG_MIB;

// vg_pool_ref is a pool's record and what was in it when it was listed.
struct vg_pool_ref {
	struct vg_pool *pool;
	CUmemoryPool handle;
	CUdevice ordinal;
	uint32_t device;
	bool destroyed;
};

// vg_pools_next finds a pool that holds memory of a device, from record *at on, and moves *at
// behind it. It returns false where there is none.
static bool vg_pools_next(struct vg_state *state, uint32_t *at, struct vg_pool_ref *ref)
{
	bool found = false;

	vg_lock(&state->pool_mutex);
	while (!found && *at < state->pools_end) {
		struct vg_pool *pool = &state->pools[(*at)++];

		found = pool->in_use && !pool->on_host;
		if (found)
			*ref = (struct vg_pool_ref){pool, pool->handle, pool->ordinal, pool->device,
						    pool->destroyed};
	}
	vg_unlock(&state->pool_mutex);
	return found;
}

// vg_pool_visit keeps a pool from being destroyed while the driver is called
// with it. It returns false where it is gone already.
static bool vg_pool_visit(struct vg_state *state, const struct vg_pool_ref *ref)
{
	bool there;

	vg_lock(&state->pool_mutex);
	there = ref->pool->in_use && !ref->pool->destroyed && ref->pool->handle == ref->handle;
	if (there)
		atomic_fetch_add(&ref->pool->visits, 1);
	vg_unlock(&state->pool_mutex);
	return there;
}

// vg_pool_enter takes a ticket, and keeps the pool from being destroyed until
// vg_pool_leave. It returns false where that is under way or done: who destroys
// it says so first and looks for visitors then.
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

// vg_pool_ask asks what a pool holds, and if need be, what of that it uses: for
// what is promised to others, that must be known.
static struct vg_pool_answer vg_pool_ask(struct vg_pool *pool, bool need_used)
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

// vg_pool_due is what a pool is to be charged with, of the `before` that it and the
// claim that settles are charged with: what it holds, and what it may take again
// for those who borrow; of an imported one all pointers, whatever the driver says.
static uint64_t vg_pool_due(const struct vg_pool *pool, uint64_t before)
{
	const struct vg_pool_answer *last = &pool->last;
	uint64_t promised = 0;

	// Of what it uses nothing may be known: then it stays charged as it is.
	if (pool->borrowed && pool->shareable)
		promised = vg_sizes_due(pool);
	else if (pool->borrowed)
		promised = last->knows_used ? vg_round_up(last->used + pool->borrowed, vg_pool_granule) :
					      before;
	return vg_max(vg_max(last->held, pool->pointers), vg_min(promised, before));
}

static void vg_pool_arrived(struct vg_pool *pool)
{
	if (pool->arriving)
		pool->arriving--;
}

// vg_pool_note has what an imported pool is charged with earn no credit while its exporter
// holds it.
static void vg_pool_note(struct vg_state *state, const struct vg_pool *pool, uint64_t before)
{
	if (!pool->imported)
		return;
	if (pool->charged > before)
		vg_uncertain_made(state, pool->device, pool->charged - before);
	else
		vg_uncertain_gone(state, pool->device, before - pool->charged);
}

// vg_pool_apply charges the pool with what it holds, in place of what the claim
// (NULL if there is none) has reserved, by one change of the page, so that
// nobody sees the bytes twice. It returns what the pool took beyond its claim.
static uint64_t vg_pool_apply(struct vg_state *state, struct vg_pool *pool,
			      const struct vg_pool_answer *answer, struct vg_claim *claim)
{
	uint64_t claimed = claim ? claim->bytes : 0;
	uint64_t charged;
	uint64_t before;
	uint64_t after;

	vg_lock(&state->pool_mutex);
	charged = pool->charged;
	before = charged + claimed;
	if (claim) {
		if (claim->piece)
			vg_sizes_end(pool, claim->piece, claim->granted, claim->borrowed != 0,
				     answer->valid && answer->held > charged);
		if (claim->borrowed)
			pool->borrowed -= vg_min(claim->borrowed, pool->borrowed);
		if (claim->pointers)
			vg_pool_arrived(pool);
		pool->pointers += claim->pointers;
		claim->borrowed = 0;
		claim->bytes = 0;
	}
	if (pool->in_use) {
		if (answer->valid && answer->ticket > pool->last.ticket) {
			pool->last = *answer;
			if (claim && answer->held > charged)
				claim->grown = answer->held - charged;
		} else if (!answer->valid && claim && claim->granted) {
			pool->last.held = vg_max(pool->last.held, before);
			pool->last.knows_used = false;
		}
		pool->charged = vg_pool_due(pool, before);
		// What arrives is charged by those who claim it.
		if (pool->arriving && !claim)
			pool->charged = vg_min(pool->charged, charged);
		vg_pool_note(state, pool, charged);
	}
	after = pool->charged;
	vg_settle(&state->pages, pool->device, claimed, after > charged ? after - charged : 0);
	if (after < charged)
		vg_release(&state->pages, pool->device, charged - after);
	vg_unlock(&state->pool_mutex);
	return after > before ? after - before : 0;
}

// vg_pool_refresh returns whether the pool holds more than it uses, so that it
// may return some of it at a later synchronisation.
static bool vg_pool_refresh(struct vg_state *state, struct vg_pool *pool)
{
	struct vg_pool_answer answer = vg_pool_ask(pool, true);

	vg_pool_apply(state, pool, &answer, NULL);
	return answer.valid && answer.held > vg_round_up(answer.used, vg_pool_granule);
}

void vg_pools_refresh(struct vg_state *state)
{
	bool stale = vg_orphans_look(state);
	struct vg_pool_ref ref;
	uint32_t at = 0;

	while (vg_pools_next(state, &at, &ref))
		stale |= vg_pool_refresh(state, ref.pool);
	if (stale)
		atomic_store(&state->stale_pools, 1);
}

void vg_pools_refresh_stale(struct vg_state *state)
{
	if (atomic_load(&state->stale_pools) && atomic_exchange(&state->stale_pools, 0))
		vg_pools_refresh(state);
}

bool vg_pools_held(struct vg_state *state, uint32_t device, uint64_t *held)
{
	struct vg_pool_ref ref;
	uint32_t at = 0;

	*held = 0;
	while (vg_pools_next(state, &at, &ref)) {
		struct vg_pool_answer answer;

		if (ref.device != device)
			continue;
		answer = vg_pool_ask(ref.pool, false);
		if (!answer.valid)
			return false;
		*held += answer.held;
	}
	return true;
}

// Trimming is not a call of the program's: it must not break the capture of a
// stream, neither this thread's nor another's.
static void vg_pool_trim(struct vg_state *state, const struct vg_pool_ref *pool)
{
	int mode;

	if (!vg_pool_visit(state, pool))
		return;
	mode = vg_relax();
	if (mode >= 0) {
		if (pool->handle)
			VG_CALL(cuMemPoolTrimTo, pool->handle, 0);
		else
			VG_CALL(cuDeviceGraphMemTrim, pool->ordinal);
		vg_unrelax(mode);
	}
	vg_pool_leave(pool->pool);
}

bool vg_pools_trim(struct vg_state *state, uint32_t device)
{
	bool found = atomic_load(&state->orphans) != 0;
	struct vg_pool_ref ref;
	uint32_t at = 0;

	vg_orphans_look(state);
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

// vg_pool_promise finds out whether a pool holds so much more than it uses and has
// promised, and promises it if so. It returns false where the answer is older than
// one that was applied: what the pool had to spare may have been used since.
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

// vg_pool_borrow promises the bytes out of what the pool holds, if it holds so
// much more than it uses.
static bool vg_pool_borrow(struct vg_state *state, struct vg_pool *pool, uint64_t bytes)
{
	bool enough = false;
	bool answered = false;

	// What a driver takes beyond what it was expected to, such a pool never returns.
	if (pool->shareable && vg_memory_used(&state->pages, pool->device) >
				       vg_memory_limit(&state->pages, pool->device))
		return false;
	while (!answered) {
		struct vg_pool_answer answer = vg_pool_ask(pool, true);

		if (!answer.valid)
			return false;
		vg_lock(&state->pool_mutex);
		answered = vg_pool_promise(state, pool, &answer, vg_round_up(bytes, vg_pool_part),
					   &enough);
		vg_unlock(&state->pool_mutex);
	}
	return enough;
}

CUresult vg_pool_claim(struct vg_claim *claim, struct vg_pool *pool, uint32_t way, uint64_t bytes)
{
	struct vg_state *state = vg_ready_state();
	CUdevice device = pool->ordinal;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	// Where there is ample room, the pool need not be asked what it has.
	result = vg_claim_at_once(claim, device, way, vg_round_up(bytes, vg_pool_granule));
	if (result && vg_pool_borrow(state, pool, bytes)) {
		result = vg_claim_on(claim, device, way, 0);
		claim->borrowed = vg_round_up(bytes, vg_pool_part);
	} else if (result) {
		result = vg_claim_on(claim, device, way, vg_round_up(bytes, vg_pool_granule));
	}
	claim->pool = pool;
	if (!result && bytes && pool->shareable)
		vg_pool_asked(claim, bytes);
	return result;
}

void vg_pool_asked(struct vg_claim *claim, uint64_t bytes)
{
	if (!claim->pool->shareable)
		return;
	claim->piece = vg_sizes_round(bytes);
	if (claim->borrowed)
		return; // it was counted when it was lent
	vg_lock(&claim->state->pool_mutex);
	vg_sizes_ask(claim->pool, claim->piece);
	vg_unlock(&claim->state->pool_mutex);
}

bool vg_pool_settle(struct vg_claim *claim, CUresult result)
{
	struct vg_pool *pool = claim->pool;
	struct vg_pool_answer answer;
	uint64_t beyond;

	claim->granted = result == CUDA_SUCCESS;
	answer = vg_pool_ask(pool, false);
	beyond = vg_pool_apply(claim->state, pool, &answer, claim);
	vg_claim_void(claim);
	return !beyond || vg_memory_used(&claim->state->pages, claim->device) <=
				  vg_memory_limit(&claim->state->pages, claim->device);
}

CUresult vg_pool_claim_pointer(struct vg_claim *claim, struct vg_pool *pool, uint64_t bytes)
{
	struct vg_state *state = vg_ready_state();
	struct vg_pool_answer answer;
	uint64_t due;
	uint64_t charged;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	answer = vg_pool_ask(pool, false);
	vg_lock(&state->pool_mutex);
	due = vg_max(answer.valid ? answer.held : 0, vg_add_saturating(pool->pointers, bytes));
	charged = pool->charged;
	vg_unlock(&state->pool_mutex);
	result = vg_claim_on(claim, pool->ordinal, VG_WAY_IMPORT, due - vg_min(due, charged));
	claim->pool = pool;
	if (!result)
		return result;
	vg_lock(&state->pool_mutex);
	vg_pool_arrived(pool);
	vg_unlock(&state->pool_mutex);
	return result;
}

// Where the driver does not say what the pool holds, it is taken to keep every pointer.
bool vg_pool_settle_pointer(struct vg_claim *claim, uint64_t bytes)
{
	claim->pointers = bytes;
	return vg_pool_settle(claim, CUDA_SUCCESS);
}

void vg_pool_drop_pointer(struct vg_state *state, struct vg_pool *pool, uint32_t life, uint64_t bytes)
{
	bool there;

	vg_lock(&state->pool_mutex);
	there = pool->in_use && vg_pool_life(state, pool) == life;
	if (there)
		pool->pointers -= vg_min(bytes, pool->pointers);
	vg_unlock(&state->pool_mutex);
	if (!there)
		return;
	vg_pool_refresh(state, pool);
	vg_orphans_look(state);
}

bool vg_pool_keep(struct vg_state *state, struct vg_pool *pool, uint64_t bytes, uint64_t epoch)
{
	bool kept;

	vg_lock(&state->pool_mutex);
	kept = atomic_load(&state->graph_epoch) == epoch;
	if (kept)
		pool->borrowed += bytes;
	vg_unlock(&state->pool_mutex);
	return kept;
}

void vg_pool_kept(struct vg_state *state, struct vg_pool *pool, uint64_t bytes)
{
	uint64_t ticket = UINT64_C(1) << vg_ticket_shift;

	vg_lock(&state->pool_mutex);
	ticket = (atomic_fetch_add(&pool->visits, ticket) + ticket) >> vg_ticket_shift;
	if (pool->last.held < pool->charged)
		atomic_store(&state->stale_pools, 1);
	pool->last = (struct vg_pool_answer){.ticket = ticket, .held = pool->charged, .valid = true};
	pool->borrowed -= vg_min(bytes, pool->borrowed);
	vg_unlock(&state->pool_mutex);
}

// vg_pool_close lets nobody in any more, and waits for those who are inside.
static void vg_pool_close(struct vg_state *state, struct vg_pool *pool)
{
	const struct timespec nap = {.tv_nsec = 20000};

	vg_lock(&state->pool_mutex);
	pool->destroyed = true;
	vg_unlock(&state->pool_mutex);
	while (atomic_load(&pool->visits) & vg_visitors)
		nanosleep(&nap, NULL);
}

struct vg_pool *vg_pool_ending(struct vg_state *state, CUmemoryPool handle, uint64_t *used)
{
	struct vg_pool_answer answer;
	struct vg_pool *pool;

	vg_lock(&state->pool_mutex);
	pool = vg_pool_find(state, 0, handle);
	vg_unlock(&state->pool_mutex);
	if (!pool)
		return NULL;
	answer = vg_pool_ask(pool, true);
	*used = answer.valid ? answer.used : UINT64_MAX;
	vg_pool_close(state, pool);
	return pool;
}

void vg_pool_ended(struct vg_state *state, struct vg_pool *pool, uint64_t used, CUresult result)
{
	vg_lock(&state->pool_mutex);
	// Without its handle, which was given to another meanwhile, it has gone.
	if (result && pool->handle) {
		pool->destroyed = false;
	} else if (pool->on_host || !pool->handle || (pool->imported ? !vg_pool_has_pointers(pool) : used == 0)) {
		vg_pool_release(state, pool);
	} else {
		vg_orphan_left(state, pool, pool->imported ? 0 : used);
	}
	vg_unlock(&state->pool_mutex);
}
