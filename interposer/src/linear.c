// SPDX-License-Identifier: Apache-2.0

#include "linear.h"

#include <stdlib.h>

#include "reserve.h"

static const uint64_t vg_default_granule = 2 * VG_MIB;

// vg_free_bytes is what the driver has left on the current device; 0 if it does
// not say.
static uint64_t vg_free_bytes(void)
{
	size_t available = 0;
	size_t total = 0;

	return VG_CALL(cuMemGetInfo_v2, &available, &total) == CUDA_SUCCESS ? available : 0;
}

// vg_probe allocates one piece just above 2 MiB and sees what that takes of the
// device; 0 where that cannot be told.
static uint64_t vg_probe(uint64_t bytes)
{
	uint64_t before = vg_free_bytes();
	uint64_t taken = 0;
	uint64_t during;
	CUdeviceptr address;

	if (VG_CALL(cuMemAlloc_v2, &address, bytes))
		return 0;
	during = vg_free_bytes();
	if (during && during < before)
		taken = before - during;
	VG_CALL(cuMemFree_v2, address);
	return taken;
}

// vg_granule_of finds the granule by which `bytes` become `taken`; 0 if none
// fits, as when other processes were active at the same time.
static uint64_t vg_granule_of(uint64_t bytes, uint64_t taken)
{
	for (uint64_t granule = vg_default_granule; granule >= 512; granule /= 2)
		if (vg_round_up(bytes, granule) == taken)
			return granule;
	return 0;
}

// vg_learn_granule asks the driver twice, and believes it if it says the same
// twice. The default is right for real drivers, and errs to the safe side for
// any with smaller granules.
static uint64_t vg_learn_granule(CUdevice device)
{
	const uint64_t bytes = 2 * VG_MIB + 1;
	struct vg_claim claim;
	uint64_t granule = 0;

	// Not reported when refused: nobody asked for this memory.
	if (vg_claim_at_once(&claim, device, VG_WAY_NONE, 2 * vg_default_granule))
		return vg_default_granule;
	for (int i = 0; i < 3 && !granule; i++) {
		uint64_t first = vg_granule_of(bytes, vg_probe(bytes));

		if (first && first == vg_granule_of(bytes, vg_probe(bytes)))
			granule = first;
	}
	if (granule)
		atomic_store(&claim.state->granule[claim.device], granule);
	vg_claim_void(&claim);
	return granule ? granule : vg_default_granule;
}

static uint64_t vg_known_granule(const struct vg_state *state, uint32_t device)
{
	uint64_t granule = atomic_load(&state->granule[device]);

	return granule ? granule : vg_default_granule;
}

uint64_t vg_linear_most(uint64_t bytes)
{
	struct vg_state *state = vg_ready_state();
	CUdevice device;
	int index;
	uint64_t granule;

	if (!state || VG_CALL(cuCtxGetDevice, &device) || (index = vg_device_index(state, device)) < 0)
		return bytes;
	granule = atomic_load(&state->granule[index]);
	return vg_round_up(bytes, granule ? granule : vg_learn_granule(device));
}

// A granule's entry counts its references in `extra`.
struct vg_granule_change {
	uint64_t key;
	uint64_t bytes; // that the change takes or gives back
	uint64_t size;
};

static struct vg_entry *vg_granule_join(struct vg_entry *entry, void *context)
{
	struct vg_granule_change *change = context;

	if (!entry) {
		change->bytes += change->size;
		entry = calloc(1, sizeof *entry);
		if (!entry)
			return NULL; // then it stays charged: too much, never too little
		entry->kind = VG_GRANULE;
		entry->key = change->key;
	}
	entry->extra++;
	return entry;
}

static struct vg_entry *vg_granule_leave(struct vg_entry *entry, void *context)
{
	struct vg_granule_change *change = context;

	if (!entry || --entry->extra > 0)
		return entry;
	free(entry);
	change->bytes += change->size;
	return NULL;
}

// vg_granule_key is a granule's number with its size above it, as pieces may
// have been charged by several sizes.
static uint64_t vg_granule_key(uint64_t number, uint64_t size)
{
	return number | size << 40;
}

// vg_granules applies the change to the granules that the piece shares with
// others, its first and its last unless it fills them, and adds those that it
// has for itself.
static uint64_t vg_granules(struct vg_state *state, uint64_t address, uint64_t bytes, uint64_t size,
			    struct vg_entry *(*visit)(struct vg_entry *entry, void *context))
{
	struct vg_granule_change change = {.size = size};
	uint64_t end = address + bytes;
	uint64_t first = address / size;
	uint64_t last = (end - 1) / size;
	uint64_t whole = last - first + 1;

	if (address % size || (first == last && end % size)) {
		change.key = vg_granule_key(first, size);
		vg_table_with(&state->table, VG_GRANULE, change.key, visit, &change);
		whole--;
	}
	if (last != first && end % size) {
		change.key = vg_granule_key(last, size);
		vg_table_with(&state->table, VG_GRANULE, change.key, visit, &change);
		whole--;
	}
	return change.bytes + whole * size;
}

void vg_linear_forget(struct vg_state *state, struct vg_entry *entry)
{
	if (entry->extra)
		entry->bytes = vg_granules(state, entry->key, entry->bytes, entry->extra,
					   vg_granule_leave);
}

// vg_linear_undo frees a piece for which there is no room. The granules that pieces of
// other threads have joined meanwhile stay, and so does what they cost: it came with
// this piece. `joined` is what that would have cost.
static CUresult vg_linear_undo(struct vg_claim *claim, CUdeviceptr address, uint64_t bytes,
			       uint64_t granule, uint64_t joined, CUresult (*undo)(CUdeviceptr address))
{
	struct vg_pages *pages = &claim->state->pages;
	uint64_t left;

	undo(address);
	left = vg_granules(claim->state, address, bytes, granule, vg_granule_leave);
	if (joined > left)
		vg_settle(pages, claim->device, 0, joined - left);
	else
		vg_release(pages, claim->device, left - joined);
	return vg_claim_refuse(claim, bytes);
}

CUresult vg_linear_settle(struct vg_claim *claim, CUresult result, CUdeviceptr address,
			  uint64_t bytes, CUresult (*undo)(CUdeviceptr address))
{
	struct vg_entry *entry = claim->entry;
	uint64_t granule;
	uint64_t joined;

	if (result || bytes == 0) {
		vg_claim_void(claim);
		return result;
	}
	// The granule's size is kept with the piece, as it may be learnt later.
	granule = vg_known_granule(claim->state, claim->device);
	joined = vg_granules(claim->state, address, bytes, granule, vg_granule_join);
	if (!vg_claim_resize(claim, joined))
		return vg_linear_undo(claim, address, bytes, granule, joined, undo);
	entry->extra = granule;
	// The entry has the piece's size: what it is charged lies in its granules.
	vg_claim_settle_as(claim, VG_LINEAR, address, vg_current_context(), bytes);
	return CUDA_SUCCESS;
}
