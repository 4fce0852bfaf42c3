// SPDX-License-Identifier: Apache-2.0
#include "shared.h"

#include <string.h>

static struct gs_shared *find(struct gs_state *state, uint64_t id)
{
	struct gs_shared *shared = &state->shared[id % GS_MAX_SHARED];

	return id && shared->id == id ? shared : NULL;
}

uint64_t gs_shared_add(struct gs_handle *handle, uint32_t gpu, uint64_t bytes)
{
	struct gs_state *state = handle->state;

	for (uint32_t tries = 0; tries < GS_MAX_SHARED; tries++) {
		uint64_t id = ++state->shared_id;
		struct gs_shared *shared = &state->shared[id % GS_MAX_SHARED];

		if (shared->id)
			continue;
		memset(shared, 0, sizeof(*shared));
		shared->gpu = gpu;
		shared->bytes = bytes;
		shared->charged = handle->id;
		shared->made = 1;
		shared->id = id;
		return id;
	}
	return 0;
}

bool gs_shared_there(const struct gs_handle *handle, uint64_t id)
{
	return find(handle->state, id) != NULL;
}

static struct gs_importer *importer(struct gs_shared *shared, uint32_t slot)
{
	struct gs_importer *free_one = NULL;

	for (uint32_t i = 0; i < GS_MAX_IMPORTERS; i++) {
		if (shared->importers[i].count && shared->importers[i].slot == slot)
			return &shared->importers[i];
		if (!shared->importers[i].count && !free_one)
			free_one = &shared->importers[i];
	}
	if (free_one)
		free_one->slot = slot;
	return free_one;
}

bool gs_shared_import(struct gs_handle *handle, uint64_t id)
{
	struct gs_shared *shared = find(handle->state, id);
	struct gs_importer *own = shared ? importer(shared, handle->id) : NULL;

	if (!own)
		return false;
	own->count++;
	return true;
}

static uint32_t heir(const struct gs_shared *shared)
{
	for (uint32_t i = 0; i < GS_MAX_IMPORTERS; i++)
		if (shared->importers[i].count)
			return shared->importers[i].slot;
	return GS_NO_PROC;
}

/* pass_on moves the charge from a process that dropped the memory to the next holder, or frees the
 * memory. */
static void pass_on(struct gs_state *state, struct gs_shared *shared)
{
	struct gs_proc_gpu *from = &state->procs[shared->charged].gpu[shared->gpu];
	uint32_t next = heir(shared);

	from->bytes -= shared->bytes;
	if (next == GS_NO_PROC) {
		state->gpus[shared->gpu].used_bytes -= shared->bytes;
		shared->id = 0;
		return;
	}
	shared->charged = next;
	from = &state->procs[next].gpu[shared->gpu];
	from->bytes += shared->bytes;
	if (from->bytes > from->peak_bytes)
		from->peak_bytes = from->bytes;
}

static void let_go(struct gs_state *state, struct gs_shared *shared, uint32_t slot)
{
	if (shared->charged == slot)
		pass_on(state, shared);
}

void gs_shared_close(struct gs_handle *handle, uint64_t id)
{
	struct gs_shared *shared = find(handle->state, id);
	struct gs_importer *own = shared ? importer(shared, handle->id) : NULL;

	if (!own || !own->count || --own->count)
		return;
	if (!(shared->made && shared->charged == handle->id))
		let_go(handle->state, shared, handle->id);
}

void gs_shared_release(struct gs_handle *handle, uint64_t id)
{
	struct gs_shared *shared = find(handle->state, id);

	if (!shared || !shared->made)
		return;
	shared->made = 0;
	let_go(handle->state, shared, handle->id);
}

void gs_shared_forget(struct gs_state *state, uint32_t slot)
{
	/* Processes take entries in order, and most machines have no entry. */
	for (uint32_t i = 0; i < GS_MAX_SHARED && i <= state->shared_id; i++) {
		struct gs_shared *shared = &state->shared[i];

		if (!shared->id)
			continue;
		for (uint32_t k = 0; k < GS_MAX_IMPORTERS; k++)
			if (shared->importers[k].slot == slot)
				shared->importers[k].count = 0;
		if (shared->charged == slot && shared->made)
			shared->made = 0;
		let_go(state, shared, slot);
	}
}
