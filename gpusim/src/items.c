// SPDX-License-Identifier: Apache-2.0
/* This file implements the states of an item: queued, blocked by a dependency, ready, done. */
#include "items.h"

static void set_bit(uint64_t *bits, uint32_t bit)
{
	bits[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static void clear_bit(uint64_t *bits, uint32_t bit)
{
	bits[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
}

static bool has_bit(const uint64_t *bits, uint32_t bit)
{
	return bits[bit / 64] >> (bit % 64) & 1;
}

bool gs_item_pending(const struct gs_state *state, uint32_t slot, struct gs_ref ref)
{
	const struct gs_item *item;

	if (ref.seq == 0)
		return false;
	item = &state->items[slot][ref.item];
	return item->state == GS_ITEM_PENDING && item->seq == ref.seq;
}

struct gs_ref gs_item_blocker(const struct gs_state *state, uint32_t slot, const struct gs_item *item)
{
	for (uint32_t d = 0; d < GS_MAX_DEPS; d++) {
		struct gs_ref ref = {item->dep_seq[d], item->dep_item[d]};

		if (gs_item_pending(state, slot, ref))
			return ref;
	}
	return (struct gs_ref){0, 0};
}

/*
 * renew_slice renews the slice of a process that has had the GPU alone. The process's slices
 * followed one another. Therefore a joining process waits for the end of the current slice, not for
 * the end of the first slice.
 */
static void renew_slice(struct gs_gpu *gpu, uint32_t joining, uint64_t at)
{
	bool alone = gpu->runnable_count == 1 && gpu->current != joining &&
		     gpu->current != GS_NO_PROC && has_bit(gpu->runnable, gpu->current);

	if (alone && gpu->slice_start_ns && at > gpu->slice_start_ns)
		gpu->slice_start_ns += (at - gpu->slice_start_ns) / gpu->slice_ns * gpu->slice_ns;
}

static void append_ready(struct gs_state *state, uint32_t slot, uint16_t index)
{
	struct gs_item *item = gs_item_at(state, slot, index);
	struct gs_gpu *gpu = &state->gpus[item->gpu];
	struct gs_proc_gpu *mine = &state->procs[slot].gpu[item->gpu];

	item->next = GS_NONE;
	item->prev = mine->ready_tail;
	if (mine->ready_tail == GS_NONE) {
		mine->ready_head = index;
		renew_slice(gpu, slot, state->clock_ns);
		set_bit(gpu->runnable, slot);
		gpu->runnable_count++;
	} else {
		gs_item_at(state, slot, mine->ready_tail)->next = index;
	}
	mine->ready_tail = index;
	item->ready = 1;
}

static void remove_ready(struct gs_state *state, uint32_t slot, struct gs_item *item)
{
	struct gs_gpu *gpu = &state->gpus[item->gpu];
	struct gs_proc_gpu *mine = &state->procs[slot].gpu[item->gpu];

	if (item->prev == GS_NONE)
		mine->ready_head = item->next;
	else
		gs_item_at(state, slot, item->prev)->next = item->next;
	if (item->next == GS_NONE)
		mine->ready_tail = item->prev;
	else
		gs_item_at(state, slot, item->next)->prev = item->prev;
	item->ready = 0;
	if (mine->ready_head == GS_NONE) {
		clear_bit(gpu->runnable, slot);
		gpu->runnable_count--;
	}
}

static void push_timed(struct gs_state *state, uint32_t slot, uint16_t index)
{
	struct gs_item *item = gs_item_at(state, slot, index);
	struct gs_proc *proc = &state->procs[slot];

	if (item->start_ns == 0 && item->kind == GS_ITEM_COPY) {
		item->start_ns = item->ready_ns;
		item->end_ns = item->ready_ns + item->remaining_ns;
	}
	item->prev = GS_NONE;
	item->next = proc->timed_head;
	if (proc->timed_head != GS_NONE)
		gs_item_at(state, slot, proc->timed_head)->prev = index;
	proc->timed_head = index;
	item->ready = 1;
	set_bit(state->timed, slot);
}

static void remove_timed(struct gs_state *state, uint32_t slot, struct gs_item *item)
{
	struct gs_proc *proc = &state->procs[slot];

	if (item->prev == GS_NONE)
		proc->timed_head = item->next;
	else
		gs_item_at(state, slot, item->prev)->next = item->next;
	if (item->next != GS_NONE)
		gs_item_at(state, slot, item->next)->prev = item->prev;
	item->ready = 0;
	if (proc->timed_head == GS_NONE)
		clear_bit(state->timed, slot);
}

/* retire hands a finished item with a tag to its owner, and frees an item without a tag. */
static void retire(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at)
{
	struct gs_proc *proc = &state->procs[slot];
	struct gs_item *item = gs_item_at(state, slot, index);
	uint16_t *list = item->tag ? &proc->done_head : &proc->free_head;

	item->end_ns = at;
	item->state = item->tag ? GS_ITEM_DONE : GS_ITEM_FREE;
	item->next = *list;
	*list = index;
	proc->pending--;
	if (item->kind == GS_ITEM_COMPUTE && !item->tag)
		proc->gpu[item->gpu].launches++;
}

/*
 * place puts an item into its list. place returns true for a mark whose dependencies are met.
 */
static bool place(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at)
{
	struct gs_item *item = gs_item_at(state, slot, index);
	struct gs_ref blocker = gs_item_blocker(state, slot, item);

	if (blocker.seq) {
		struct gs_item *parent = gs_item_at(state, slot, blocker.item);

		item->next = parent->first_child;
		parent->first_child = index;
		return false;
	}
	if (item->ready_ns == 0)
		item->ready_ns = at;
	if (item->kind == GS_ITEM_MARK)
		return true;
	if (item->kind == GS_ITEM_COMPUTE && item->end_ns <= at)
		append_ready(state, slot, index);
	else if (item->kind != GS_ITEM_HOST)
		push_timed(state, slot, index);
	return false;
}

/*
 * end_all ends the items of a list, and the marks whose last dependency ends. A work list
 * replaces recursion: a chain of marks can be as long as a queue.
 */
static void end_all(struct gs_state *state, uint32_t slot, uint16_t work, uint64_t at)
{
	while (work != GS_NONE) {
		uint16_t index = work;
		struct gs_item *item = gs_item_at(state, slot, index);
		uint16_t child = item->first_child;

		work = item->next;
		item->first_child = GS_NONE;
		retire(state, slot, index, at);
		while (child != GS_NONE) {
			struct gs_item *c = gs_item_at(state, slot, child);
			uint16_t sibling = c->next;

			if (place(state, slot, child, at)) {
				c->next = work;
				work = child;
			}
			child = sibling;
		}
	}
}

void gs_item_settle(struct gs_state *state, uint32_t slot, uint16_t index)
{
	if (!place(state, slot, index, state->clock_ns))
		return;
	gs_item_at(state, slot, index)->next = GS_NONE;
	end_all(state, slot, index, state->clock_ns);
}

void gs_item_arrive(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at)
{
	remove_timed(state, slot, gs_item_at(state, slot, index));
	place(state, slot, index, at);
}

void gs_item_finish(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at)
{
	struct gs_item *item = gs_item_at(state, slot, index);

	if (item->ready && item->kind == GS_ITEM_COMPUTE)
		remove_ready(state, slot, item);
	else if (item->ready)
		remove_timed(state, slot, item);
	item->next = GS_NONE;
	end_all(state, slot, index, at);
}
