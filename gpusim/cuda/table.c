// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements device addresses. The simulator reserves a large range of the process's
 * address space without memory, so that device addresses never collide with host addresses. A write
 * to a device address stores content.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_BYTES (UINT64_C(1) << 40)
#define ARENA_MIN_BYTES (UINT64_C(1) << 36)
#define PAGE UINT64_C(4096)
#define LARGE (UINT64_C(2) << 20)
/* CONTENT_BYTES_MAX is the most content that the simulator stores. The simulator counts all device
 * memory. */
#define CONTENT_BYTES_MAX (UINT64_C(256) << 20)
#define LOW_BEGIN UINT64_C(0x10000000)
#define LOW_END UINT64_C(0xf0000000) /* the chunks follow the arena */
#define LOW_CHUNKS_END UINT64_C(0xffe00000)
#define CHUNK_PARTS 4 /* one of this many parts of an arena is reserved for chunks */

struct arena {
	uint64_t begin, end, cursor;
};

static struct arena arena;
static uint64_t arena_chunks_end;
static struct arena low = {LOW_BEGIN, LOW_END, LOW_BEGIN};
static struct {
	struct sim_alloc *entries; /* by address */
	size_t count, room;
} table;
static uint64_t content_bytes;

static bool arena_open(void)
{
	if (arena.begin)
		return true;
	for (uint64_t size = ARENA_BYTES; size >= ARENA_MIN_BYTES; size /= 2) {
		void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (map == MAP_FAILED)
			continue;
		(void)madvise(map, size, MADV_DONTDUMP);
		arena.begin = round_up((uint64_t)(uintptr_t)map, LARGE);
		arena.end = (uint64_t)(uintptr_t)map + size / CHUNK_PARTS * (CHUNK_PARTS - 1);
		arena.cursor = arena.begin;
		arena_chunks_end = (uint64_t)(uintptr_t)map + size;
		return true;
	}
	return false;
}

/* position returns the index of the first entry that ends above the address. */
static size_t position(CUdeviceptr address)
{
	size_t from = 0, to = table.count;

	while (from < to) {
		size_t middle = (from + to) / 2;

		if (table.entries[middle].address + table.entries[middle].size <= address)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

/* search returns a free range between the arena's cursor and the arena's end, or 0 if none exists. */
static uint64_t search(const struct arena *a, uint64_t from, uint64_t size, uint64_t alignment)
{
	uint64_t address = round_up(from, alignment);

	for (size_t i = position(address); i < table.count; i++) {
		if (table.entries[i].address >= a->end || address + size <= table.entries[i].address)
			break;
		address = round_up(table.entries[i].address + table.entries[i].size, alignment);
	}
	return address + size <= a->end ? address : 0;
}

static struct sim_alloc *insert(CUdeviceptr address, uint64_t size)
{
	size_t at = position(address);

	if (table.count == table.room) {
		size_t room = table.room ? table.room * 2 : 256;
		struct sim_alloc *grown = realloc(table.entries, room * sizeof(*grown));

		if (!grown)
			return NULL;
		table.entries = grown;
		table.room = room;
	}
	memmove(&table.entries[at + 1], &table.entries[at], (table.count - at) * sizeof(*table.entries));
	table.count++;
	table.entries[at] = (struct sim_alloc){
		.address = address,
		.size = size,
		.id = sim.next_id++,
	};
	return &table.entries[at];
}

static struct sim_alloc *take(struct arena *a, uint64_t size, uint64_t alignment)
{
	uint64_t span = round_up(size ? size : 1, 512);
	uint64_t address;
	struct sim_alloc *alloc;

	if (span > a->end - a->begin)
		return NULL;
	address = search(a, a->cursor, span, alignment);
	if (!address)
		address = search(a, a->begin, span, alignment);
	if (!address)
		return NULL;
	alloc = insert(address, size);
	if (alloc)
		a->cursor = address + span;
	return alloc;
}

struct sim_alloc *sim_alloc_new(enum alloc_kind kind, uint64_t size, uint64_t alignment)
{
	struct sim_alloc *alloc;

	if (!arena_open())
		return NULL;
	if (!alignment)
		alignment = size >= LARGE ? LARGE : 512;
	alloc = take(&arena, size, alignment);
	if (!alloc)
		return NULL;
	alloc->kind = kind;
	alloc->backed = true;
	return alloc;
}

struct sim_alloc *sim_alloc_new_low(uint64_t size)
{
	return take(&low, size, size >= LARGE ? LARGE : 512);
}

bool sim_chunk_bounds(bool is_low, uint64_t *from, uint64_t *to)
{
	if (!arena_open())
		return false;
	*from = is_low ? low.end : round_up(arena.end, LARGE);
	*to = is_low ? LOW_CHUNKS_END : arena_chunks_end;
	return true;
}

struct sim_alloc *sim_alloc_within(enum alloc_kind kind, uint64_t from, uint64_t to, uint64_t size,
				   bool is_low)
{
	const struct arena bounds = {from, to, from};
	uint64_t address = search(&bounds, from, round_up(size, 512), 512);
	struct sim_alloc *alloc = address ? insert(address, size) : NULL;

	if (!alloc)
		return NULL;
	alloc->kind = kind;
	alloc->backed = !is_low;
	return alloc;
}

struct sim_alloc *sim_alloc_at(enum alloc_kind kind, CUdeviceptr address, uint64_t size)
{
	struct sim_alloc *alloc = insert(address, size);

	if (alloc)
		alloc->kind = kind;
	return alloc;
}

size_t sim_alloc_count(void)
{
	return table.count;
}

struct sim_alloc *sim_alloc_entry(size_t index)
{
	return &table.entries[index];
}

struct sim_alloc *sim_alloc_find(CUdeviceptr address)
{
	size_t at = position(address);

	if (at < table.count && table.entries[at].address <= address)
		return &table.entries[at];
	return NULL;
}

struct sim_alloc *sim_alloc_exact(CUdeviceptr address)
{
	struct sim_alloc *alloc = sim_alloc_find(address);

	return alloc && alloc->address == address ? alloc : NULL;
}

/* forget_content frees the pages of stored content, and all pages of managed memory, which the
 * program itself writes. */
static void forget_content(const struct sim_alloc *alloc)
{
	uint64_t touched = alloc->kind == ALLOC_MANAGED ? alloc->size : alloc->content;
	uint64_t from = round_up(alloc->address, PAGE);
	uint64_t to = round_up(alloc->address + touched, PAGE);
	uint64_t end = (alloc->address + alloc->size) / PAGE * PAGE; /* the next page may be shared */

	if (to > end)
		to = end;
	if (alloc->backed && from < to)
		(void)madvise((void *)(uintptr_t)from, to - from, MADV_DONTNEED);
}

void sim_alloc_drop(struct sim_alloc *alloc)
{
	size_t at = (size_t)(alloc - table.entries);

	forget_content(alloc);
	content_bytes -= alloc->content;
	table.count--;
	memmove(alloc, alloc + 1, (table.count - at) * sizeof(*alloc));
}

void *sim_content(CUdeviceptr address, uint64_t size)
{
	struct sim_alloc *alloc = sim_alloc_find(address);
	uint64_t end;

	if (!alloc)
		return NULL;
	if (alloc->kind == ALLOC_HOST)
		return (void *)(uintptr_t)address;
	end = address - alloc->address + size;
	if (!alloc->backed || end > alloc->size)
		return NULL;
	/* All bytes below the highest used byte count as used. */
	if (end > alloc->content) {
		if (content_bytes + end - alloc->content > CONTENT_BYTES_MAX)
			return NULL;
		content_bytes += end - alloc->content;
		alloc->content = end;
	}
	return (void *)(uintptr_t)address;
}
