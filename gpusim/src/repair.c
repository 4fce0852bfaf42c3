// SPDX-License-Identifier: Apache-2.0
/*
 * This file repairs the memory, work and slot of a process after the process has died. If the dead
 * process held the lock, lists and sums may be half changed.
 */
#include "repair.h"

#include "items.h"
#include "shared.h"

#include <string.h>

/* relink rebuilds the lists of one process from the states of its items alone. */
static void relink(struct gs_state *state, uint32_t slot)
{
	struct gs_proc *proc = &state->procs[slot];

	proc->timed_head = proc->done_head = proc->free_head = GS_NONE;
	proc->pending = 0;
	for (uint32_t g = 0; g < GS_MAX_GPUS; g++)
		proc->gpu[g].ready_head = proc->gpu[g].ready_tail = GS_NONE;
	for (uint16_t i = 0; i < proc->item_count; i++) {
		struct gs_item *item = gs_item_at(state, slot, i);
		uint16_t *list = item->state == GS_ITEM_DONE ? &proc->done_head : &proc->free_head;

		item->first_child = GS_NONE;
		item->ready = 0;
		if (item->state == GS_ITEM_PENDING) {
			proc->pending++;
			continue;
		}
		item->next = *list;
		*list = i;
	}
}

/*
 * next_in_order returns the pending item with the lowest (ready time, seq) above the last item's.
 */
static uint16_t next_in_order(struct gs_state *state, uint32_t slot, uint64_t *ready, uint64_t *seq)
{
	struct gs_proc *proc = &state->procs[slot];
	uint16_t best = GS_NONE;
	uint64_t best_ready = 0, best_seq = 0;

	for (uint16_t i = 0; i < proc->item_count; i++) {
		struct gs_item *item = gs_item_at(state, slot, i);
		uint64_t r = item->ready_ns ? item->ready_ns : UINT64_MAX;

		if (item->state != GS_ITEM_PENDING)
			continue;
		if (r < *ready || (r == *ready && item->seq <= *seq))
			continue;
		if (best == GS_NONE || r < best_ready || (r == best_ready && item->seq < best_seq)) {
			best = i;
			best_ready = r;
			best_seq = item->seq;
		}
	}
	*ready = best_ready;
	*seq = best_seq;
	return best;
}

static void resettle(struct gs_state *state, uint32_t slot)
{
	uint64_t ready = 0, seq = 0;

	for (;;) {
		uint16_t index = next_in_order(state, slot, &ready, &seq);

		if (index == GS_NONE)
			return;
		gs_item_settle(state, slot, index);
	}
}

void gs_sched_repair(struct gs_state *state)
{
	memset(state->timed, 0, sizeof(state->timed));
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		memset(state->gpus[g].runnable, 0, sizeof(state->gpus[g].runnable));
		state->gpus[g].runnable_count = 0;
	}
	for (uint32_t slot = 0; slot < GS_MAX_PROCS; slot++) {
		if (!state->procs[slot].in_use)
			continue;
		relink(state, slot);
		resettle(state, slot);
	}
}

void gs_repair(struct gs_state *state)
{
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		uint64_t used = 0;

		for (uint32_t slot = 0; slot < GS_MAX_PROCS; slot++)
			if (state->procs[slot].in_use)
				used += state->procs[slot].gpu[g].bytes;
		state->gpus[g].used_bytes = used;
	}
	gs_sched_repair(state);
}

void gs_sched_forget(struct gs_state *state, uint32_t slot)
{
	struct gs_proc *proc = &state->procs[slot];
	uint64_t bit = UINT64_C(1) << (slot % 64);

	for (uint32_t g = 0; g < state->gpu_count; g++) {
		struct gs_gpu *gpu = &state->gpus[g];

		if (gpu->runnable[slot / 64] & bit) {
			gpu->runnable[slot / 64] &= ~bit;
			gpu->runnable_count--;
		}
		proc->gpu[g].ready_head = proc->gpu[g].ready_tail = GS_NONE;
	}
	state->timed[slot / 64] &= ~bit;
	proc->timed_head = proc->done_head = proc->free_head = GS_NONE;
	proc->pending = 0;
	proc->item_count = 0;
}

static void remember(struct gs_state *state, const struct gs_proc *proc)
{
	uint64_t seq = state->history_seq + 1;
	struct gs_history *entry = &state->history[seq % GS_HISTORY_RING];

	memset(entry, 0, sizeof(*entry));
	entry->start_ns = proc->start_ns;
	entry->end_ns = gs_now();
	entry->pid_namespace = proc->pid_namespace;
	entry->self_pid = proc->self_pid;
	entry->seen_pid = proc->seen_pid;
	entry->exec_id = proc->exec_id;
	memcpy(entry->comm, proc->comm, sizeof(entry->comm));
	memcpy(entry->hostname, proc->hostname, sizeof(entry->hostname));
	for (uint32_t g = 0; g < GS_MAX_GPUS; g++) {
		entry->gpu[g].peak_bytes = proc->gpu[g].peak_bytes;
		entry->gpu[g].gpu_time_ns = proc->gpu[g].gpu_time_ns;
	}
	entry->seq = seq;
	state->history_seq = seq;
}

void gs_forget(struct gs_state *state, uint32_t slot)
{
	struct gs_proc *proc = &state->procs[slot];

	/*
	 * in_use is 2 if the history already contains the process, even if the repairing process dies
	 * at this point.
	 */
	if (proc->in_use == 1)
		remember(state, proc);
	proc->in_use = 2;
	gs_sched_forget(state, slot);
	gs_shared_forget(state, slot);
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		state->gpus[g].used_bytes -= proc->gpu[g].bytes;
		proc->gpu[g].bytes = 0;
	}
	proc->in_use = 0;
}
