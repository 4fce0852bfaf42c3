// SPDX-License-Identifier: Apache-2.0

#include "use.h"

#include <stdlib.h>

#include "base/number.h"
#include "correction.h"
#include "driver/handle.h"

static void vg_use_is_noted(struct vg_state *state, uint64_t key)
{
	atomic_store_explicit(vg_use_note(state, key), key, memory_order_relaxed);
}

void vg_use_open(struct vg_use *use, struct vg_state *state)
{
	use->state = state;
	use->claim = (struct vg_claim){0};
	use->count = 0;
	use->more = false;
}

// vg_use_owner returns the object that was charged for a handle's code.
static struct vg_owner vg_use_owner(struct vg_state *state, const void *handle)
{
	struct vg_entry entry;

	if (vg_table_get(&state->table, VG_MODULE, vg_handle_key(handle), &entry))
		return (struct vg_owner){VG_MODULE, vg_handle_key(handle)};
	if (vg_table_get(&state->table, VG_PART, vg_handle_key(handle), &entry))
		return (struct vg_owner){(enum vg_kind)entry.count, entry.extra};
	return (struct vg_owner){0};
}

static void vg_use_add_first(struct vg_use *use, uint64_t key, struct vg_owner owner)
{
	struct vg_entry entry;

	if (vg_table_get(&use->state->table, VG_USED, key, &entry)) {
		vg_use_is_noted(use->state, key);
		return;
	}
	use->more |= use->count == vg_most_firsts;
	if (!use->more)
		use->firsts[use->count++] = (struct vg_first){key, owner};
}

void vg_use_add(struct vg_use *use, const void *handle)
{
	vg_use_add_first(use, vg_use_key(use->state, handle), vg_use_owner(use->state, handle));
}

void vg_use_add_name(struct vg_use *use, struct vg_owner owner, const char *name)
{
	uint64_t key = owner.key;

	for (; name && *name; name++)
		key = (key ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	vg_use_add_first(use, key, owner);
}

static bool vg_use_has_before(const struct vg_use *use, uint32_t index)
{
	for (uint32_t i = 0; i < index; i++)
		if (use->firsts[i].owner.key == use->firsts[index].owner.key)
			return true;
	return false;
}

// vg_use_again returns the part of the estimates that was credited and may be needed for this call.
// vg_use_again ignores estimates that were charged in full again since the last measurement.
static uint64_t vg_use_again(const struct vg_use *use, uint32_t device)
{
	struct vg_state *state = use->state;
	uint64_t estimated = 0;
	struct vg_entry entry;

	for (uint32_t i = 0; i < use->count; i++) {
		const struct vg_owner *owner = &use->firsts[i].owner;

		if (!owner->kind || !vg_table_get(&state->table, owner->kind, owner->key, &entry))
			estimated = UINT64_MAX;
		else if ((entry.device != device || entry.extra != atomic_load(&state->measurements) + 1u) &&
			 !vg_use_has_before(use, i))
			estimated = vg_add_saturating(estimated, entry.bytes);
	}
	return vg_correction_credit(state, device, use->more ? UINT64_MAX : estimated);
}

// vg_use_device sets `device` to the device of the current context, or to device 0 if no context is
// current.
static CUresult vg_use_device(CUdevice *device)
{
	CUresult result = VG_CALL(cuCtxGetDevice, device);

	return result == CUDA_ERROR_INVALID_CONTEXT ? VG_CALL(cuDeviceGet, device, 0) : result;
}

CUresult vg_use_claim(struct vg_use *use)
{
	struct vg_state *state = use->state;
	CUdevice device;
	CUresult result;
	uint64_t again;
	int index;

	use->state = NULL;
	if (!use->count)
		return CUDA_SUCCESS;
	result = vg_use_device(&device);
	index = result ? -1 : vg_state_device(state, device);
	if (index < 0)
		return CUDA_SUCCESS; // the driver's call will fail
	use->state = state;
	result = vg_claim_on(&use->claim, device, VG_WAY_MODULE, vg_use_again(use, (uint32_t)index));
	if (result)
		return result;
	// A measurement may have been applied before the call began. During the call no measurement
	// can be applied.
	again = vg_use_again(use, (uint32_t)index);
	return vg_claim_resize(&use->claim, again) ? CUDA_SUCCESS : vg_claim_refuse(&use->claim, again);
}

// vg_use_stamp marks an estimate on the charged GPU as charged in full again.
struct vg_use_stamp {
	uint32_t device;
	uint64_t measurements;
};

static struct vg_entry *vg_use_stamp(struct vg_entry *entry, void *context)
{
	const struct vg_use_stamp *stamp = context;

	if (entry && entry->device == stamp->device)
		entry->extra = stamp->measurements;
	return entry;
}

static void vg_use_file(struct vg_state *state, const struct vg_first *first)
{
	struct vg_entry *entry = calloc(1, sizeof *entry);

	vg_use_is_noted(state, first->key);
	if (!entry)
		return; // the next use may count as a first use again
	*entry = (struct vg_entry){.kind = VG_USED, .key = first->key, .extra = first->owner.key,
				   .context = vg_handle_context()};
	if (!vg_table_put_new(&state->table, entry))
		free(entry);
}

CUresult vg_use_close(struct vg_use *use, CUresult result)
{
	struct vg_state *state = use->state;
	struct vg_use_stamp stamp;
	uint64_t again;

	if (result) {
		vg_claim_void(&use->claim);
		return result;
	}
	// Another use may have withdrawn, and charged, some of the credit meanwhile.
	again = vg_correction_withdraw(state, use->claim.device, use->claim.bytes);
	(void)vg_claim_resize(&use->claim, again); // never more than the claim
	vg_claim_charge(&use->claim, VG_USED);
	stamp = (struct vg_use_stamp){use->claim.device, atomic_load(&state->measurements) + 1u};
	for (uint32_t i = 0; i < use->count; i++) {
		const struct vg_first *first = &use->firsts[i];

		if (first->owner.kind)
			vg_table_with(&state->table, first->owner.kind, first->owner.key, vg_use_stamp, &stamp);
		vg_use_file(state, first);
	}
	vg_claim_end(&use->claim);
	return result;
}

void vg_use_known(struct vg_state *state, const void *handle, struct vg_owner owner)
{
	vg_use_file(state, &(struct vg_first){vg_use_key(state, handle), owner});
}

void vg_use_belongs(struct vg_state *state, const void *handle, struct vg_owner owner)
{
	struct vg_entry *entry = calloc(1, sizeof *entry);

	if (!entry)
		return;
	*entry = (struct vg_entry){.kind = VG_PART, .key = vg_handle_key(handle), .extra = owner.key,
				   .count = owner.kind};
	if (!vg_table_put_new(&state->table, entry))
		free(entry);
}

void vg_uses_forget(struct vg_state *state)
{
	for (size_t i = 0; i < sizeof state->uses / sizeof *state->uses; i++)
		atomic_store_explicit(&state->uses[i], 0, memory_order_relaxed);
}

static bool vg_use_is_of(const struct vg_entry *entry, const void *owner)
{
	return (entry->kind == VG_USED || entry->kind == VG_PART) && entry->extra == vg_handle_key(owner);
}

void vg_uses_unload(struct vg_state *state, const void *owner)
{
	struct vg_entry *entry;

	if (!atomic_load(&state->lazy))
		return;
	entry = vg_table_sweep(&state->table, vg_use_is_of, owner);
	while (entry) {
		struct vg_entry *next = entry->next;

		free(entry);
		entry = next;
	}
	vg_uses_forget(state);
}
