// SPDX-License-Identifier: Apache-2.0

#include "linear.h"

#include <stdlib.h>

#include "correction.h"
#include "reserve.h"

static const uint64_t vg_granule = 2 * VG_MIB;

// Of empty granules so much stays charged on a GPU.
static const uint64_t vg_retained_most = 8 * VG_MIB;

uint64_t vg_linear_most(uint64_t bytes)
{
	return vg_round_up(bytes, vg_granule);
}

// vg_granule_change is what becomes of the granules that a piece shares with others of its GPU.
// An entry of one counts its pieces; one without any is retained.
struct vg_granule_change {
	struct vg_state *state;
	uint32_t device;
	uint64_t context; // the piece's
	bool retain;      // what becomes empty may stay charged
	uint64_t key;
	uint64_t piece; // bytes that the piece has in the granule
	uint64_t bytes; // that the change takes or gives back
};

static struct vg_entry *vg_granule_join(struct vg_entry *entry, void *context)
{
	struct vg_granule_change *change = context;

	if (!entry) {
		change->bytes += vg_granule;
		entry = calloc(1, sizeof *entry);
		if (!entry)
			return NULL; // then it stays charged: too much, never too little
		*entry = (struct vg_entry){.kind = VG_GRANULE, .key = change->key,
					   .device = change->device, .bytes = vg_granule};
	} else if (entry->count == 0) {
		// It is charged, unless it was found to be gone.
		atomic_fetch_sub(&change->state->retained[entry->device], vg_granule);
		change->bytes += vg_estimate_gone(change->state, entry->device, vg_granule);
	} else {
		// So is what the piece takes of it, unless that was found not to be held.
		change->bytes += vg_credit_withdraw(change->state, entry->device, change->piece);
	}
	entry->count++;
	return entry;
}

// vg_granule_retain keeps an empty granule charged, if there are not too many.
static bool vg_granule_retain(const struct vg_granule_change *change)
{
	_Atomic uint64_t *retained = &change->state->retained[change->device];

	if (!change->retain)
		return false;
	if (atomic_fetch_add(retained, vg_granule) < vg_retained_most) {
		vg_estimate_made(change->state, change->device, vg_granule);
		return true;
	}
	atomic_fetch_sub(retained, vg_granule);
	return false;
}

static struct vg_entry *vg_granule_leave(struct vg_entry *entry, void *context)
{
	struct vg_granule_change *change = context;

	if (!entry || entry->count == 0 || --entry->count > 0)
		return entry;
	entry->context = change->context;
	if (vg_granule_retain(change))
		return entry;
	// What others had of it, and left before, was perhaps found not to be held.
	change->bytes += vg_granule - vg_credit_withdraw(change->state, entry->device, vg_granule - change->piece);
	free(entry);
	return NULL;
}

// vg_granule_visit applies the change to a granule. Each GPU on which there are pieces in it has an
// entry, whose key has the GPU's index in the bits that are no granule's number.
static void vg_granule_visit(struct vg_granule_change *change, uint64_t number,
			     struct vg_entry *(*visit)(struct vg_entry *entry, void *context))
{
	change->key = number | (uint64_t)change->device << 48;
	vg_table_with(&change->state->table, VG_GRANULE, change->key, visit, change);
}

// vg_granules applies the change to the granules that the piece shares with
// others, its first and its last unless it fills them, and adds those that it
// has for itself.
static uint64_t vg_granules(struct vg_granule_change *change, uint64_t address, uint64_t bytes,
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

// What fills a granule or more the driver does not place beside others.
static bool vg_is_small(uint64_t bytes)
{
	return bytes < vg_granule;
}

void vg_linear_forget(struct vg_state *state, struct vg_entry *entry, bool ended)
{
	struct vg_granule_change change = {.state = state, .device = entry->device,
					   .context = entry->context,
					   .retain = !ended && vg_is_small(entry->bytes)};

	if (entry->extra)
		vg_uncertain_gone(state, entry->device, entry->extra);
	entry->bytes = vg_granules(&change, entry->key, entry->bytes, vg_granule_leave);
}

// vg_linear_undo frees a piece for which there is no room. The granules that pieces of
// other threads have joined meanwhile stay, and so does what they cost: it came with
// this piece. `joined` is what that would have cost.
static CUresult vg_linear_undo(struct vg_claim *claim, CUdeviceptr address, uint64_t bytes,
			       uint64_t joined, CUresult (*undo)(CUdeviceptr address))
{
	struct vg_granule_change change = {.state = claim->state, .device = claim->device};
	struct vg_pages *pages = &claim->state->pages;
	uint64_t left;

	undo(address);
	left = vg_granules(&change, address, bytes, vg_granule_leave);
	if (joined > left)
		vg_settle(pages, claim->device, 0, joined - left);
	else
		vg_release(pages, claim->device, left - joined);
	return vg_claim_refuse(claim, bytes);
}

CUresult vg_linear_settle(struct vg_claim *claim, CUresult result, CUdeviceptr address,
			  uint64_t bytes, CUresult (*undo)(CUdeviceptr address))
{
	struct vg_granule_change change = {.state = claim->state, .device = claim->device};
	uint64_t joined;

	if (result || bytes == 0) {
		vg_claim_void(claim);
		return result;
	}
	joined = vg_granules(&change, address, bytes, vg_granule_join);
	if (!vg_claim_resize(claim, joined))
		return vg_linear_undo(claim, address, bytes, joined, undo);
	if (claim->way == VG_WAY_MANAGED) {
		claim->entry->extra = vg_round_up(bytes, vg_granule);
		vg_uncertain_made(claim->state, claim->device, claim->entry->extra);
	}
	// The entry has the piece's size: what it is charged lies in its granules.
	vg_claim_settle_as(claim, VG_LINEAR, address, vg_current_context(), bytes);
	return CUDA_SUCCESS;
}
