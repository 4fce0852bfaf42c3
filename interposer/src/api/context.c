// SPDX-License-Identifier: Apache-2.0

#include "context.h"

#include "driver/handle.h"
#include "memory/pool_held.h"
#include "memory/release.h"
#include "memory/use.h"
#include "pages/limits.h"
#include "time/throttle.h"

uint64_t vg_context_estimate(CUdevice device)
{
	struct vg_state *state = vg_state_ready();
	int index = state ? vg_state_device(state, device) : -1;
	uint64_t hint = index < 0 ? 0 : vg_limits_context(&state->pages, (uint32_t)index);

	return hint ? hint : VG_UNKNOWN_CONTEXT_BYTES;
}

static bool vg_belongs(const struct vg_entry *entry, const void *context)
{
	uint64_t key = vg_handle_key(context);

	if (entry->kind == VG_GRANULE && entry->count)
		return false; // the handle is in use, perhaps for another context
	return entry->context == key || (entry->kind == VG_CONTEXT && entry->key == key);
}

struct vg_entry *vg_context_take(struct vg_state *state, CUcontext context)
{
	// While the context ends, no thread may query the driver about the context's streams and
	// events.
	if (context)
		vg_throttle_drop_context(state, context);
	// Entries without a context have the key 0, and must not end with a NULL context.
	return context ? vg_table_sweep(&state->table, vg_belongs, context) : NULL;
}

void vg_context_keep(struct vg_state *state, CUcontext context, struct vg_entry *entries)
{
	if (context)
		vg_throttle_left_context(state, context, false);
	while (entries) {
		struct vg_entry *next = entries->next;

		vg_table_put(&state->table, entries);
		entries = next;
	}
}

void vg_context_drop(struct vg_state *state, CUcontext context, struct vg_entry *entries)
{
	struct vg_entry *own = NULL;

	if (context)
		vg_throttle_left_context(state, context, true);
	vg_uses_forget(state);
	while (entries) {
		struct vg_entry *next = entries->next;

		if (vg_kind_is_context(entries->kind))
			own = entries;
		else
			vg_release_ended(state, entries);
		entries = next;
	}
	if (own)
		vg_release_ended(state, own);
	vg_pool_held_refresh(state);
}

struct vg_move {
	uint64_t from;
	uint64_t to;
};

// vg_move always returns false, so that vg_table_sweep removes no entry.
static bool vg_move(const struct vg_entry *entry, const void *context)
{
	const struct vg_move *move = context;

	if (entry->context == move->from)
		((struct vg_entry *)(uintptr_t)entry)->context = move->to;
	return false;
}

void vg_context_move(struct vg_state *state, CUcontext from, CUcontext to)
{
	const struct vg_move move = {vg_handle_key(from), vg_handle_key(to)};

	vg_table_sweep(&state->table, vg_move, &move);
}
