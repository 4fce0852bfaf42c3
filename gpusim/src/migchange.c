// SPDX-License-Identifier: Apache-2.0
/* This file creates and destroys MIG devices of a running machine. */
#include "state.h"

#include <errno.h>
#include <string.h>

/* next_instance returns the number of a new GPU instance, or 0 if the GPU has too few slices or too
 * little memory left. */
static uint32_t next_instance(const struct gs_state *state, const struct gs_gpu_config *device)
{
	uint64_t memory = device->memory_bytes;
	uint32_t slices = device->mig.slices, taken = 0, instance = 1;

	for (uint32_t g = 0; g < state->gpu_count; g++) {
		const struct gs_gpu *other = &state->gpus[g];

		if (other->mig.role != GS_MIG_DEVICE || other->mig.parent != device->mig.parent)
			continue;
		slices += other->mig.slices;
		memory += other->memory_bytes;
		taken |= 1u << other->mig.gpu_instance;
	}
	while (taken >> instance & 1)
		instance++;
	if (slices > GS_MIG_MAX || memory > state->gpus[device->mig.parent].memory_bytes)
		return 0;
	return instance;
}

/* add_entry writes a new entry behind the last entry. All other values are the GPU's values. The
 * caller holds the lock. */
static void add_entry(struct gs_state *state, const struct gs_gpu_config *device)
{
	struct gs_gpu *entry = &state->gpus[state->gpu_count];

	memset(entry, 0, sizeof(*entry));
	memcpy(entry, &state->gpus[device->mig.parent], offsetof(struct gs_gpu, slice_start_ns));
	memcpy(entry->uuid, device->uuid, sizeof(entry->uuid));
	memcpy(entry->name, device->name, sizeof(entry->name));
	entry->memory_bytes = device->memory_bytes;
	entry->sm_count = device->sm_count;
	entry->mig = device->mig;
	entry->current = GS_NO_PROC;
	__atomic_store_n(&state->gpu_count, state->gpu_count + 1, __ATOMIC_RELEASE);
}

int gs_mig_create(struct gs_handle *handle, uint32_t gpu, const char *profile,
		  const uint8_t uuid[16])
{
	struct gs_state *state = handle->state;
	const struct gs_gpu *card = &state->gpus[gpu];
	struct gs_gpu_config base = {.minor = card->minor, .sm_count = card->sm_count}, device;
	int entry = -ENOSPC;
	int err;

	memcpy(base.name, card->name, sizeof(base.name));
	if (card->mig.role != GS_MIG_ON || !gs_mig_make(&device, &base, gpu, profile))
		return -EINVAL;
	memcpy(device.uuid, uuid, sizeof(device.uuid));
	gs_lock(handle);
	device.mig.gpu_instance = next_instance(state, &device);
	if (device.mig.gpu_instance && state->gpu_count < GS_MAX_GPUS) {
		err = gs_make_devices(handle->dir, &device);
		entry = err ? err : (int)state->gpu_count;
		if (!err)
			add_entry(state, &device);
	}
	gs_unlock(handle);
	return entry;
}

int gs_mig_destroy(struct gs_handle *handle, uint32_t gpu)
{
	struct gs_gpu *entry = &handle->state->gpus[gpu];
	int err = 0;

	if (entry->mig.role != GS_MIG_DEVICE)
		return -EINVAL;
	gs_lock(handle);
	(void)gs_reap(handle);
	if (entry->used_bytes)
		err = -EBUSY;
	else
		entry->mig.role = GS_MIG_GONE;
	gs_unlock(handle);
	return err;
}
