// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements sub-allocation. Allocations smaller than a chunk share chunks of their
 * context, and larger allocations are rounded up to whole chunks. A process keeps some empty
 * chunks, with their memory, for its next small allocations.
 */
#include "sim.h"

#include <stdlib.h>

struct chunk {
	struct sim_context *context; /* NULL: the chunk is free and has no memory */
	uint64_t address;
	uint64_t pieces, used;
};

static struct {
	struct chunk *chunks;
	uint32_t count, room;
} list; /* under the process lock */

static uint64_t chunk_bytes(const struct sim_context *context)
{
	return sim_gpu(context->device)->chunk_bytes;
}

/* make adds a charged chunk to this context. make returns NULL and sets *err on failure. */
static struct chunk *make(struct sim_context *context, bool low, CUresult *err)
{
	uint64_t size = chunk_bytes(context), from, to;
	struct chunk *chunk = NULL;

	*err = CUDA_ERROR_OUT_OF_MEMORY;
	if (!sim_chunk_bounds(low, &from, &to))
		return NULL;
	for (uint32_t i = 0; i < list.count && !chunk; i++)
		if (!list.chunks[i].context && list.chunks[i].address >= from &&
		    list.chunks[i].address < to)
			chunk = &list.chunks[i];
	if (!chunk) {
		uint64_t next = from;

		for (uint32_t i = 0; i < list.count; i++)
			if (list.chunks[i].address >= next && list.chunks[i].address < to)
				next = list.chunks[i].address + size;
		if (next + size > to)
			return NULL;
		if (list.count == list.room) {
			uint32_t room = list.room ? 2 * list.room : 64;
			struct chunk *grown = realloc(list.chunks, room * sizeof(*grown));

			if (!grown)
				return NULL;
			list.chunks = grown;
			list.room = room;
		}
		chunk = &list.chunks[list.count++];
		*chunk = (struct chunk){.address = next};
	}
	*err = sim_charge(context->device, size);
	if (*err)
		return NULL;
	chunk->context = context;
	chunk->pieces = chunk->used = 0;
	return chunk;
}

static struct sim_alloc *place(struct chunk *chunk, enum alloc_kind kind, uint64_t size, bool low)
{
	uint64_t end = chunk->address + chunk_bytes(chunk->context);
	struct sim_alloc *alloc = sim_alloc_within(kind, chunk->address, end, size, low);

	if (!alloc)
		return NULL;
	alloc->chunk = (uint32_t)(chunk - list.chunks) + 1;
	chunk->pieces++;
	chunk->used += round_up(size, 512);
	return alloc;
}

static struct sim_alloc *small(struct sim_context *context, enum alloc_kind kind, uint64_t size,
			       bool low, CUresult *err)
{
	uint64_t from, to;
	struct chunk *chunk;

	if (!sim_chunk_bounds(low, &from, &to)) {
		*err = CUDA_ERROR_OUT_OF_MEMORY;
		return NULL;
	}
	for (uint32_t i = 0; i < list.count; i++) {
		struct sim_alloc *alloc;

		chunk = &list.chunks[i];
		if (chunk->context != context || chunk->address < from || chunk->address >= to ||
		    chunk->used + round_up(size, 512) > chunk_bytes(context))
			continue;
		alloc = place(chunk, kind, size, low);
		if (alloc)
			return alloc;
	}
	chunk = make(context, low, err);
	return chunk ? place(chunk, kind, size, low) : NULL;
}

struct sim_alloc *sim_chunk_alloc(struct sim_context *context, enum alloc_kind kind, uint64_t size,
				  bool low, CUresult *err)
{
	uint64_t charged = round_up(size, chunk_bytes(context));
	struct sim_alloc *alloc;

	*err = CUDA_SUCCESS;
	if (size < chunk_bytes(context)) {
		alloc = small(context, kind, size, low, err);
	} else {
		*err = sim_charge(context->device, charged);
		if (*err)
			return NULL;
		alloc = low ? sim_alloc_new_low(size) : sim_alloc_new(kind, size, chunk_bytes(context));
		if (alloc)
			alloc->charged = charged;
		else
			sim_uncharge(context->device, charged);
	}
	if (!alloc && !*err)
		*err = CUDA_ERROR_OUT_OF_MEMORY;
	if (!alloc)
		return NULL;
	alloc->device = context->device;
	alloc->context = context;
	return alloc;
}

/* kept returns the bytes of a GPU that the process keeps in empty chunks. */
static uint64_t kept(const struct sim_device *device)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < list.count; i++)
		if (list.chunks[i].context && list.chunks[i].context->device == device &&
		    list.chunks[i].pieces == 0)
			bytes += sim_gpu(device)->chunk_bytes;
	return bytes;
}

static void give_back(struct chunk *chunk)
{
	sim_uncharge(chunk->context->device, chunk_bytes(chunk->context));
	chunk->context = NULL;
}

void sim_chunk_leave(const struct sim_alloc *alloc)
{
	struct chunk *chunk = &list.chunks[alloc->chunk - 1];

	chunk->used -= round_up(alloc->size, 512);
	if (--chunk->pieces == 0 && kept(alloc->device) > sim_gpu(alloc->device)->retain_bytes)
		give_back(chunk);
}

void sim_chunks_end(const struct sim_context *context)
{
	for (uint32_t i = 0; i < list.count; i++)
		if (list.chunks[i].context == context && list.chunks[i].pieces == 0)
			give_back(&list.chunks[i]);
}
