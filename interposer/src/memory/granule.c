// SPDX-License-Identifier: Apache-2.0

#include "granule.h"

#include <stdlib.h>

#include "base/number.h"
#include "correction.h"

// vg_retained_most is the limit of the bytes of empty granules that stay charged on a GPU.
static const uint64_t vg_retained_most = 8 * VG_MIB;

// vg_granule_change is a change of the granules that a piece shares with other pieces of its GPU. A
// granule's entry counts the pieces in the granule. A granule without pieces is retained.
struct vg_granule_change {
	struct vg_state *state;
	uint32_t device;
	uint64_t context; // the piece's context
	bool retain;      // granules that become empty may stay charged
	uint64_t key;
	uint64_t piece; // bytes of the piece in the granule
	uint64_t bytes; // bytes that the change takes or returns
};

static struct vg_entry *vg_granule_add(struct vg_entry *entry, void *context)
{
	struct vg_granule_change *change = context;

	if (!entry) {
		change->bytes += vg_granule;
		entry = calloc(1, sizeof *entry);
		if (!entry)
			return NULL; // the granule stays charged, so that the charge is never too low
		*entry = (struct vg_entry){.kind = VG_GRANULE, .key = change->key,
					   .device = change->device, .bytes = vg_granule};
	} else if (entry->count == 0) {
		// An empty granule is still charged, unless a credit covers the granule.
		atomic_fetch_sub(&change->state->retained[entry->device], vg_granule);
		change->bytes += vg_correction_estimate_gone(change->state, entry->device, vg_granule);
	} else {
		// The piece's part of a shared granule is already charged, unless a credit covers
		// the part.
		change->bytes += vg_correction_withdraw(change->state, entry->device, change->piece);
	}
	entry->count++;
	return entry;
}

// vg_granule_retain reports whether an empty granule stays charged. A granule does not stay charged
// if vg_retained_most bytes of empty granules are already charged.
static bool vg_granule_retain(const struct vg_granule_change *change)
{
	_Atomic uint64_t *retained = &change->state->retained[change->device];

	if (!change->retain)
		return false;
	if (atomic_fetch_add(retained, vg_granule) < vg_retained_most) {
		vg_correction_estimate_made(change->state, change->device, vg_granule);
		return true;
	}
	atomic_fetch_sub(retained, vg_granule);
	return false;
}

static struct vg_entry *vg_granule_remove(struct vg_entry *entry, void *context)
{
	struct vg_granule_change *change = context;

	if (!entry || entry->count == 0 || --entry->count > 0)
		return entry;
	entry->context = change->context;
	if (vg_granule_retain(change))
		return entry;
	// A credit may cover the parts of pieces that left the granule earlier.
	change->bytes += vg_granule - vg_correction_withdraw(change->state, entry->device, vg_granule - change->piece);
	free(entry);
	return NULL;
}

// vg_granule_visit applies the change to one granule. A granule has an entry for each GPU that has
// pieces in the granule. The key has the GPU's index in the bits above the granule's number.
static void vg_granule_visit(struct vg_granule_change *change, uint64_t number,
			     struct vg_entry *(*visit)(struct vg_entry *entry, void *context))
{
	change->key = number | (uint64_t)change->device << 48;
	vg_table_with(&change->state->table, VG_GRANULE, change->key, visit, change);
}

// vg_granule_apply applies the change to the granules that the piece does not fill, which can only
// be the first and the last. vg_granule_apply returns the bytes of the change, including the
// granules that the piece fills.
static uint64_t vg_granule_apply(struct vg_granule_change *change, uint64_t address, uint64_t bytes,
				 struct vg_entry *(*visit)(struct vg_entry *entry, void *context))
{
	uint64_t end = address + bytes;
	uint64_t first = address / vg_granule;
	uint64_t last = (end - 1) / vg_granule;
	uint64_t whole = last - first + 1;

	if (address % vg_granule || (first == last && end % vg_granule)) {
		change->piece = vg_min(end, (first + 1) * vg_granule) - address;
		vg_granule_visit(change, first, visit);
		whole--;
	}
	if (last != first && end % vg_granule) {
		change->piece = end % vg_granule;
		vg_granule_visit(change, last, visit);
		whole--;
	}
	return change->bytes + whole * vg_granule;
}

uint64_t vg_granule_join(struct vg_state *state, uint32_t device, uint64_t address, uint64_t bytes)
{
	struct vg_granule_change change = {.state = state, .device = device};

	return vg_granule_apply(&change, address, bytes, vg_granule_add);
}

uint64_t vg_granule_leave(struct vg_state *state, uint32_t device, uint64_t address, uint64_t bytes)
{
	struct vg_granule_change change = {.state = state, .device = device};

	return vg_granule_apply(&change, address, bytes, vg_granule_remove);
}

// vg_is_small reports whether a piece may be in a granule that the driver keeps. The driver does
// not place a piece that fills a granule in a shared granule.
static bool vg_is_small(uint64_t bytes)
{
	return bytes < vg_granule;
}

void vg_granule_forget(struct vg_state *state, struct vg_entry *entry, bool ended)
{
	struct vg_granule_change change = {.state = state, .device = entry->device,
					   .context = entry->context,
					   .retain = !ended && vg_is_small(entry->bytes)};

	if (entry->extra)
		vg_correction_uncertain_gone(state, entry->device, entry->extra);
	entry->bytes = vg_granule_apply(&change, entry->key, entry->bytes, vg_granule_remove);
}
