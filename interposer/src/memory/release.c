// SPDX-License-Identifier: Apache-2.0

#include "release.h"

#include <stdlib.h>

#include "base/number.h"
#include "correction.h"
#include "granule.h"
#include "pages/reserve.h"

// vg_release_linear sets the entry's `bytes` to the bytes to release. A descriptor may keep the
// granules of a piece, which then stay charged like exported memory. Granules that other pieces also
// touch count twice until the agent measures the memory.
static void vg_release_linear(struct vg_state *state, struct vg_entry *entry, bool ended)
{
	uint64_t touched = vg_round_up(entry->key % vg_granule + entry->bytes, vg_granule);

	vg_granule_forget(state, entry, ended);
	if (!entry->count)
		return;
	vg_reserve_adjust(&state->pages, entry->device, entry->bytes, touched);
	vg_correction_export_kept(state, entry->device, touched);
	entry->bytes = 0;
}

static void vg_release_in(struct vg_state *state, struct vg_entry *entry, bool ended)
{
	uint64_t withdrawn = 0;

	if (entry->kind == VG_LINEAR)
		vg_release_linear(state, entry, ended);
	if (entry->kind == VG_GRANULE)
		atomic_fetch_sub(&state->retained[entry->device], entry->bytes);
	if (vg_kind_is_context(entry->kind))
		withdrawn = vg_correction_context_ended(state, entry->device, entry->bytes, entry->kind != VG_GREEN);
	else if (vg_kind_is_estimate(entry->kind))
		withdrawn = vg_correction_estimate_gone(state, entry->device, entry->bytes);
	if (entry->kind == VG_HEAP || entry->kind == VG_IMPORT)
		vg_correction_uncertain_gone(state, entry->device, entry->bytes);
	vg_reserve_release(&state->pages, entry->device, entry->bytes - withdrawn);
	if (vg_kind_is_context(entry->kind))
		vg_sub(vg_state_context_bytes(state, entry->device), entry->bytes);
	free(entry);
}

void vg_release(struct vg_state *state, struct vg_entry *entry)
{
	vg_release_in(state, entry, false);
}

void vg_release_ended(struct vg_state *state, struct vg_entry *entry)
{
	vg_release_in(state, entry, true);
}

struct vg_entry *vg_release_begin(struct vg_state *state, enum vg_kind kind, uint64_t key)
{
	struct vg_entry *entry = state ? vg_table_take(&state->table, kind, key) : NULL;

	if (entry)
		vg_calls_begin(state);
	return entry;
}

void vg_release_finish(struct vg_state *state, struct vg_entry *entry, CUresult result)
{
	if (!entry) {
		// Memory without an entry may belong to a pool, which keeps the memory or returns
		// the memory later.
		if (state && !atomic_load_explicit(&state->stale_pools, memory_order_relaxed))
			atomic_store(&state->stale_pools, 1);
		return;
	}
	if (result == CUDA_SUCCESS)
		vg_release(state, entry);
	else
		vg_table_put(&state->table, entry);
	vg_calls_end(state);
}
