// SPDX-License-Identifier: Apache-2.0
/* This file implements a process's own queue. The process adds work, and removes finished work. */
#include "timeline.h"

#include "items.h"

static uint16_t take_item(struct gs_state *state, uint32_t slot)
{
	struct gs_proc *proc = &state->procs[slot];
	uint16_t index = proc->free_head;

	if (index != GS_NONE) {
		proc->free_head = gs_item_at(state, slot, index)->next;
		return index;
	}
	if (proc->item_count < GS_MAX_ITEMS)
		return proc->item_count++;
	return GS_NONE;
}

struct gs_ref gs_enqueue(struct gs_handle *handle, const struct gs_work *work)
{
	struct gs_state *state = handle->state;
	struct gs_proc *proc = &state->procs[handle->id];
	uint16_t index = take_item(state, handle->id);
	struct gs_item *item;

	if (index == GS_NONE)
		return (struct gs_ref){0, 0};
	item = gs_item_at(state, handle->id, index);
	*item = (struct gs_item){
		.seq = proc->next_seq++,
		.kind = work->kind,
		.gpu = work->gpu,
		.demand_ppm = work->demand_ppm,
		.remaining_ns = work->duration_ns,
		.tag = work->tag,
		.meet_mine = work->meet_mine,
		.meet_theirs = work->meet_theirs,
		.meet_turn = work->meet_turn,
		.traps = work->traps,
		.first_child = GS_NONE,
	};
	if (work->kind == GS_ITEM_COMPUTE)
		item->end_ns = state->clock_ns + state->gpus[work->gpu].launch_ns;
	for (uint32_t d = 0; d < work->dep_count; d++) {
		item->dep_seq[d] = work->deps[d].seq;
		item->dep_item[d] = work->deps[d].item;
	}
	proc->pending++;
	state->traps += work->traps;
	__atomic_store_n(&item->state, GS_ITEM_PENDING, __ATOMIC_RELEASE);
	struct gs_ref ref = {item->seq, index};
	gs_item_settle(state, handle->id, index);
	return ref;
}

bool gs_is_pending(const struct gs_handle *handle, struct gs_ref ref)
{
	return gs_item_pending(handle->state, handle->id, ref);
}

bool gs_collect(struct gs_handle *handle, struct gs_item *item)
{
	struct gs_proc *proc = &handle->state->procs[handle->id];
	uint16_t index = proc->done_head;
	struct gs_item *done;

	if (index == GS_NONE)
		return false;
	done = gs_item_at(handle->state, handle->id, index);
	proc->done_head = done->next;
	*item = *done;
	done->state = GS_ITEM_FREE;
	done->next = proc->free_head;
	proc->free_head = index;
	return true;
}

bool gs_host_is_ready(const struct gs_handle *handle, struct gs_ref ref)
{
	return gs_is_pending(handle, ref) && handle->state->items[handle->id][ref.item].ready_ns != 0;
}

void gs_host_done(struct gs_handle *handle, struct gs_ref ref)
{
	if (gs_is_pending(handle, ref))
		gs_item_finish(handle->state, handle->id, ref.item, handle->state->clock_ns);
}
