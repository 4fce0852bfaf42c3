// SPDX-License-Identifier: Apache-2.0
#include "timeline.h"

#include "items.h"
#include "rate.h"
#include "samples.h"
#include "trap.h"

#define MEETING_NS 200000 /* interval at which a wait for two meeting kernels checks again */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool has_bit(const uint64_t *bits, uint32_t bit)
{
	return bits[bit / 64] >> (bit % 64) & 1;
}

/* next_bit returns the first set bit at or after from, wrapping around, or GS_NO_PROC if no bit is
 * set. */
static uint32_t next_bit(const uint64_t *bits, uint32_t from)
{
	const uint32_t words = GS_MAX_PROCS / 64;
	uint32_t word = from / 64 % words;
	uint64_t value = bits[word] & (~UINT64_C(0) << (from % 64));

	for (uint32_t i = 0; i <= words; i++) {
		if (value)
			return word * 64 + (uint32_t)__builtin_ctzll(value);
		word = (word + 1) % words;
		value = bits[word];
	}
	return GS_NO_PROC;
}

/*
 * together reports whether two processes share a slice. All clients of the Multi-Process Service
 * share a slice. Any other process has a slice by itself.
 */
static bool together(const struct gs_state *state, uint32_t a, uint32_t b)
{
	return a == b || (state->procs[a].mps == GS_MPS_CLIENT && state->procs[b].mps == GS_MPS_CLIENT);
}

/* member_from returns the first process at or after `from` that has ready work and shares the
 * slice. */
static uint32_t member_from(const struct gs_state *state, const struct gs_gpu *gpu, uint32_t from)
{
	if (state->procs[gpu->current].mps != GS_MPS_CLIENT)
		return from <= gpu->current && has_bit(gpu->runnable, gpu->current) ? gpu->current :
										      GS_NO_PROC;
	while (from < GS_MAX_PROCS) {
		uint32_t slot = next_bit(gpu->runnable, from);

		if (slot < from || slot == GS_NO_PROC)
			break;
		if (together(state, slot, gpu->current))
			return slot;
		from = slot + 1;
	}
	return GS_NO_PROC;
}

/* FOR_MEMBERS iterates over the processes that hold the GPU now and have ready work. */
#define FOR_MEMBERS(state, gpu, slot)                                     \
	for (uint32_t slot = member_from(state, gpu, 0); slot != GS_NO_PROC; \
	     slot = member_from(state, gpu, slot + 1))

static bool holds(const struct gs_state *state, const struct gs_gpu *gpu)
{
	return gpu->current != GS_NO_PROC && member_from(state, gpu, 0) != GS_NO_PROC;
}

/* next_party returns the process that gets the slice after the current slice, or GS_NO_PROC if no
 * process waits. */
static uint32_t next_party(const struct gs_state *state, const struct gs_gpu *gpu)
{
	uint32_t slot = gpu->current;

	for (uint32_t i = 0; i < gpu->runnable_count; i++) {
		slot = next_bit(gpu->runnable, slot + 1);
		if (slot != GS_NO_PROC && !together(state, slot, gpu->current))
			return slot;
	}
	return GS_NO_PROC;
}

/* others_wait reports whether a process with ready work waits for the slice to end. */
static bool others_wait(const struct gs_state *state, const struct gs_gpu *gpu)
{
	return gpu->runnable_count > 1 && next_party(state, gpu) != GS_NO_PROC;
}

/* waits reports whether a kernel's time is over and the kernel waits for the kernel that it meets.
 */
static bool waits(const struct gs_item *item)
{
	return item->remaining_ns == 0 && item->meet_mine && !item->met;
}

/* ---- arbitration ---- */

/* begin_slice starts a slice. The GPU loses time when it changes between processes. */
static void begin_slice(struct gs_gpu *gpu, uint32_t slot, uint64_t at, uint64_t lost_ns)
{
	bool change = gpu->current != GS_NO_PROC && gpu->current != slot;

	gpu->current = slot;
	gpu->hold_from_ns = at + (change ? lost_ns : 0);
	gpu->slice_start_ns = gpu->hold_from_ns;
}

/*
 * ends_now reports whether the GPU's holder has only items left that take no time. An event right
 * behind a kernel that ends with the slice is reached before the GPU switches.
 */
static bool ends_now(struct gs_state *state, const struct gs_gpu *gpu)
{
	uint32_t g = (uint32_t)(gpu - state->gpus);

	FOR_MEMBERS(state, gpu, slot) {
		for (uint16_t i = state->procs[slot].gpu[g].ready_head; i != GS_NONE;) {
			const struct gs_item *item = gs_item_at(state, slot, i);

			if (item->remaining_ns || waits(item))
				return false;
			i = item->next;
		}
	}
	return true;
}

/* arbitrate chooses the process that holds the GPU at this time. */
static void arbitrate(struct gs_state *state, struct gs_gpu *gpu, uint64_t at)
{
	uint64_t slice_end = gpu->slice_start_ns + gpu->slice_ns;

	if (gpu->runnable_count == 0) {
		gpu->slice_start_ns = 0;
		return;
	}
	if (!holds(state, gpu) || gpu->slice_start_ns == 0) {
		begin_slice(gpu, next_bit(gpu->runnable, gpu->current + 1), at, gpu->yield_ns);
		return;
	}
	if (at < slice_end || (at == slice_end && ends_now(state, gpu)))
		return;
	if (others_wait(state, gpu))
		begin_slice(gpu, next_party(state, gpu), at, gpu->switch_ns);
	else /* the party's slices follow one another, because the party is alone */
		gpu->slice_start_ns += (at - gpu->slice_start_ns) / gpu->slice_ns * gpu->slice_ns;
}

/* filled returns the part of the GPU that a process's started items occupy. */
static uint32_t filled(struct gs_state *state, uint32_t g, uint32_t slot)
{
	uint32_t demand = 0;

	for (uint16_t i = state->procs[slot].gpu[g].ready_head; i != GS_NONE;) {
		struct gs_item *item = gs_item_at(state, slot, i);

		if (item->start_ns)
			demand += item->demand_ppm;
		i = item->next;
	}
	return demand;
}

/*
 * start_member starts a process's ready items in order, as long as the items fit the process's part
 * and the free part of the GPU. start_member returns false if an item waits for another process's
 * items to leave the GPU.
 */
static bool start_member(struct gs_state *state, uint32_t g, uint32_t slot, uint32_t *demand)
{
	const struct gs_proc *proc = &state->procs[slot];
	uint32_t limit = proc->mps == GS_MPS_CLIENT ? proc->mps_ppm : GS_DEMAND_ALL;
	uint32_t own = filled(state, g, slot);
	bool all = true;

	for (uint16_t i = proc->gpu[g].ready_head; i != GS_NONE;) {
		struct gs_item *item = gs_item_at(state, slot, i);

		i = item->next;
		if (item->start_ns || own + item->demand_ppm > limit)
			continue;
		if (*demand + item->demand_ppm > GS_DEMAND_ALL) {
			all = false;
			continue;
		}
		item->start_ns = max_u64(state->clock_ns, state->gpus[g].hold_from_ns);
		*demand += item->demand_ppm;
		own += item->demand_ppm;
	}
	return all;
}

/*
 * start_items starts the items of clients that share a slice, and alternates between the clients.
 * No client overtakes a client that waits for room, because the waiting client might never start.
 */
static void start_items(struct gs_state *state, uint32_t g)
{
	struct gs_gpu *gpu = &state->gpus[g];
	uint32_t last = gpu->current, demand = 0;
	bool wrapped = false;

	FOR_MEMBERS(state, gpu, slot)
		demand += filled(state, g, slot);
	for (uint32_t slot = last;;) {
		uint32_t before = demand;

		slot = member_from(state, gpu, slot + 1);
		if (slot == GS_NO_PROC && !wrapped) {
			wrapped = true;
			slot = member_from(state, gpu, 0);
		}
		if (slot == GS_NO_PROC || (wrapped && slot > last))
			return;
		if (!start_member(state, g, slot, &demand))
			return;
		if (demand > before)
			gpu->current = slot;
	}
}

/* rate_of returns the current rate of each started kernel. */
static uint64_t rate_of(struct gs_state *state, uint32_t g)
{
	struct gs_gpu *gpu = &state->gpus[g];
	uint32_t running = 0;

	if (gpu->crowding_ppm)
		FOR_MEMBERS(state, gpu, slot)
			for (uint16_t i = state->procs[slot].gpu[g].ready_head; i != GS_NONE;) {
				const struct gs_item *item = gs_item_at(state, slot, i);

				running += item->start_ns && item->demand_ppm && !waits(item);
				i = item->next;
			}
	return gs_rate(gpu, state->clock_ns, running);
}

/* ---- the next event ---- */

static uint64_t next_on_gpu(struct gs_state *state, uint32_t g, uint64_t limit)
{
	struct gs_gpu *gpu = &state->gpus[g];
	uint64_t begin, rate;

	if (!holds(state, gpu))
		return limit;
	rate = rate_of(state, g);
	limit = min_u64(limit, gs_rate_change(gpu, state->clock_ns));
	begin = max_u64(state->clock_ns, gpu->hold_from_ns);
	if (others_wait(state, gpu))
		limit = min_u64(limit, gpu->slice_start_ns + gpu->slice_ns);
	FOR_MEMBERS(state, gpu, slot) {
		for (uint16_t i = state->procs[slot].gpu[g].ready_head; i != GS_NONE;) {
			struct gs_item *item = gs_item_at(state, slot, i);

			if (item->start_ns && !waits(item))
				limit = min_u64(limit, begin + gs_rate_time(item->remaining_ns, rate));
			i = item->next;
		}
	}
	return max_u64(limit, state->clock_ns);
}

static uint64_t next_copy(struct gs_state *state, uint64_t limit)
{
	for (uint32_t w = 0; w < GS_MAX_PROCS / 64; w++) {
		for (uint64_t bits = state->timed[w]; bits; bits &= bits - 1) {
			uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(bits);

			for (uint16_t i = state->procs[slot].timed_head; i != GS_NONE;
			     i = state->items[slot][i].next)
				limit = min_u64(limit, state->items[slot][i].end_ns);
		}
	}
	return max_u64(limit, state->clock_ns);
}

/* ---- passing time ---- */

/* run_member runs a process's started items at this rate. */
static void run_member(struct gs_state *state, uint32_t g, uint32_t slot, uint64_t from, uint64_t to,
		       uint64_t rate)
{
	struct gs_proc_gpu *mine = &state->procs[slot].gpu[g];
	bool ran = false;

	for (uint16_t i = mine->ready_head; i != GS_NONE;) {
		struct gs_item *item = gs_item_at(state, slot, i);

		if (item->start_ns) {
			item->remaining_ns -= min_u64(item->remaining_ns, gs_rate_work(to - from, rate));
			ran = true;
		}
		i = item->next;
	}
	if (!ran)
		return;
	mine->gpu_time_ns += to - from;
	if (!state->gpus[g].sampled)
		gs_sample_add(mine->samples, GS_PROC_SAMPLES, from, to);
}

static void run_gpu(struct gs_state *state, uint32_t g, uint64_t to)
{
	struct gs_gpu *gpu = &state->gpus[g];
	uint64_t from = max_u64(state->clock_ns, gpu->hold_from_ns), rate;

	if (!holds(state, gpu) || to <= from)
		return;
	rate = rate_of(state, g);
	FOR_MEMBERS(state, gpu, slot)
		run_member(state, g, slot, from, to, rate);
	gpu->busy_ns += to - from;
	gs_sample_add(gpu->samples, GS_GPU_SAMPLES, from, to);
	if (gpu->sampled)
		gs_sample_period(gpu, &state->procs[gpu->current].gpu[g], from, to);
}

/* meet checks whether the counterpart of this kernel waits for this kernel on some GPU. */
static void meet(struct gs_state *state, uint32_t slot, struct gs_item *item)
{
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		for (uint16_t i = state->procs[slot].gpu[g].ready_head; i != GS_NONE;) {
			struct gs_item *other = gs_item_at(state, slot, i);

			if (other != item && other->start_ns && waits(other) &&
			    other->meet_mine == item->meet_theirs &&
			    other->meet_theirs == item->meet_mine && other->meet_turn == item->meet_turn)
				other->met = item->met = 1;
			i = other->next;
		}
	}
}

/* finish_member ends a process's items whose time is over. */
static void finish_member(struct gs_state *state, uint32_t g, uint32_t slot)
{
	bool traps = false;

	for (uint16_t i = state->procs[slot].gpu[g].ready_head; i != GS_NONE;) {
		struct gs_item *item = gs_item_at(state, slot, i);
		uint16_t next = item->next;

		if (item->start_ns && waits(item))
			meet(state, slot, item);
		if (item->start_ns && item->remaining_ns == 0 && !waits(item)) {
			traps |= item->traps;
			gs_item_finish(state, slot, i, state->clock_ns);
		}
		i = next;
	}
	if (traps)
		gs_trap(state, g, slot);
}

static void finish_gpu(struct gs_state *state, uint32_t g)
{
	struct gs_gpu *gpu = &state->gpus[g];

	if (!holds(state, gpu) || state->clock_ns < gpu->hold_from_ns)
		return;
	FOR_MEMBERS(state, gpu, slot)
		finish_member(state, g, slot);
}

static void finish_copies(struct gs_state *state)
{
	for (uint32_t w = 0; w < GS_MAX_PROCS / 64; w++) {
		for (uint64_t bits = state->timed[w]; bits; bits &= bits - 1) {
			uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(bits);

			for (uint16_t i = state->procs[slot].timed_head; i != GS_NONE;) {
				struct gs_item *item = gs_item_at(state, slot, i);
				uint16_t next = item->next;

				if (item->end_ns > state->clock_ns)
					; /* the item has not arrived on the GPU yet */
				else if (item->kind == GS_ITEM_COMPUTE)
					gs_item_arrive(state, slot, i, state->clock_ns);
				else
					gs_item_finish(state, slot, i, state->clock_ns);
				i = next;
			}
		}
	}
}

/* step computes up to the next event, or to limit. */
static void step(struct gs_state *state, uint64_t limit)
{
	uint64_t to = next_copy(state, limit);

	for (uint32_t g = 0; g < state->gpu_count; g++) {
		arbitrate(state, &state->gpus[g], state->clock_ns);
		if (holds(state, &state->gpus[g]))
			start_items(state, g);
		to = min_u64(to, next_on_gpu(state, g, limit));
	}
	for (uint32_t g = 0; g < state->gpu_count; g++)
		run_gpu(state, g, to);
	state->clock_ns = to;
	for (uint32_t g = 0; g < state->gpu_count; g++)
		finish_gpu(state, g);
	finish_copies(state);
}

void gs_compute(struct gs_state *state, uint64_t now)
{
	while (state->clock_ns < now)
		step(state, now);
}

/* ---- looking ahead ---- */

/* still_needs returns the time that an item still needs if no other item delays the item. */
static uint64_t still_needs(const struct gs_state *state, const struct gs_item *item)
{
	if (item->kind == GS_ITEM_COPY && item->start_ns)
		return item->end_ns - min_u64(item->end_ns, state->clock_ns);
	if (waits(item))
		return MEETING_NS;
	if (item->kind != GS_ITEM_COMPUTE)
		return item->remaining_ns;
	return gs_rate_least(&state->gpus[item->gpu], item->remaining_ns) + item->end_ns -
	       min_u64(item->end_ns, state->clock_ns);
}

uint64_t gs_estimate(const struct gs_handle *handle, struct gs_ref ref)
{
	const struct gs_state *state = handle->state;
	uint64_t needs = 0;
	const struct gs_item *item = NULL;

	while (gs_is_pending(handle, ref)) {
		item = &state->items[handle->id][ref.item];
		needs += still_needs(state, item);
		ref = gs_item_blocker(state, handle->id, item);
	}
	if (item && item->kind == GS_ITEM_COMPUTE) {
		const struct gs_gpu *gpu = &state->gpus[item->gpu];
		uint64_t slice_end = gpu->slice_start_ns + gpu->slice_ns;
		uint64_t arrival = max_u64(state->clock_ns, item->end_ns);

		/* The other process's slice must end first. */
		if (holds(state, gpu) && !together(state, gpu->current, handle->id))
			needs += slice_end - min_u64(slice_end, arrival);
	}
	return state->clock_ns + needs;
}
