// SPDX-License-Identifier: Apache-2.0
#include "trap.h"

#include "items.h"

enum { ILLEGAL_ADDRESS = 700, XID_SM_EXCEPTION = 13, XID_MMU_FAULT = 31 };

/* is_of reports whether an item is work of the GPU. Functions of the host end by themselves. */
static bool is_of(const struct gs_item *item, uint32_t gpu)
{
	return item->state == GS_ITEM_PENDING && item->gpu == gpu && item->kind != GS_ITEM_HOST;
}

/* end_work ends all items of a process on a GPU. Items that have not begun take no time. */
static void end_work(struct gs_state *state, uint32_t gpu, uint32_t slot)
{
	const struct gs_proc *proc = &state->procs[slot];

	for (uint16_t i = 0; i < proc->item_count; i++) {
		struct gs_item *item = gs_item_at(state, slot, i);

		if (is_of(item, gpu) && !item->ready)
			item->kind = GS_ITEM_MARK;
	}
	for (uint16_t i = 0; i < proc->item_count; i++) {
		const struct gs_item *item = gs_item_at(state, slot, i);

		if (is_of(item, gpu) && item->ready)
			gs_item_finish(state, slot, i, state->clock_ns);
	}
}

static void strike(struct gs_state *state, uint32_t gpu, uint32_t slot)
{
	__atomic_store_n(&state->procs[slot].gpu[gpu].trapped, state->driver.trap, __ATOMIC_RELAXED);
	end_work(state, gpu, slot);
}

void gs_trap(struct gs_state *state, uint32_t gpu, uint32_t slot)
{
	bool client = state->procs[slot].mps == GS_MPS_CLIENT;

	gs_add_xid(state, gpu, state->driver.trap == ILLEGAL_ADDRESS ? XID_MMU_FAULT : XID_SM_EXCEPTION);
	for (uint32_t other = 0; other < state->procs_end; other++) {
		const struct gs_proc *proc = &state->procs[other];

		if (other == slot || (client && proc->in_use && proc->mps == GS_MPS_CLIENT && proc->gpu[gpu].contexts))
			strike(state, gpu, other);
	}
}
