// SPDX-License-Identifier: Apache-2.0

#include "sizes.h"

#include <stdlib.h>

#include "base/number.h"

// vg_size counts the pieces of one size.
struct vg_size {
	uint64_t bytes;
	uint32_t had;     // pieces that the pool surely holds
	uint32_t live;    // pieces that are allocated and not freed
	uint32_t freeing; // calls in progress that free a piece
	uint32_t asked;   // calls in progress that allocate a piece
	uint32_t lent;    // allocating calls that were lent a piece
	struct vg_size *next;
};

uint64_t vg_sizes_round(uint64_t bytes)
{
	return vg_round_up(bytes, 2 * VG_MIB);
}

static struct vg_size *vg_size_find(const struct vg_pool *pool, uint64_t bytes)
{
	struct vg_size *size = pool->sizes;

	while (size && size->bytes != bytes)
		size = size->next;
	return size;
}

// vg_size_make adds a size. If the process has no memory for the counter, the pool never lends
// pieces of this size.
static struct vg_size *vg_size_make(struct vg_pool *pool, uint64_t bytes)
{
	struct vg_size *size = calloc(1, sizeof *size);

	if (!size)
		return NULL;
	size->bytes = bytes;
	size->next = pool->sizes;
	pool->sizes = size;
	return size;
}

void vg_sizes_ask(struct vg_pool *pool, uint64_t bytes)
{
	struct vg_size *size = vg_size_find(pool, bytes);

	if (!size)
		size = vg_size_make(pool, bytes);
	if (size)
		size->asked++;
}

// vg_sizes_held returns the memory that the pool holds according to the counts.
static uint64_t vg_sizes_held(const struct vg_pool *pool)
{
	uint64_t held = 0;

	for (const struct vg_size *size = pool->sizes; size; size = size->next)
		held = vg_add_saturating(held, size->had * size->bytes);
	return held;
}

bool vg_sizes_lend(struct vg_pool *pool, uint64_t bytes, uint64_t held)
{
	struct vg_size *size = vg_size_find(pool, bytes);

	if (!size || pool->unlike || size->live + size->asked >= size->had || vg_sizes_held(pool) > held)
		return false;
	size->asked++;
	size->lent++;
	return true;
}

static bool vg_sizes_asked(const struct vg_pool *pool)
{
	const struct vg_size *size = pool->sizes;

	while (size && !size->asked)
		size = size->next;
	return size != NULL;
}

void vg_sizes_end(struct vg_pool *pool, uint64_t bytes, bool granted, bool lent, bool grown)
{
	struct vg_size *size = vg_size_find(pool, bytes);

	if (!size || !size->asked)
		return;
	size->asked--;
	if (lent && size->lent)
		size->lent--;
	size->live += granted;
	if (size->live >= size->freeing && size->live - size->freeing > size->had)
		size->had = size->live - size->freeing;
	// Another call in progress may have made the pool grow, and has a claim for the growth.
	if (granted && lent && grown && !vg_sizes_asked(pool))
		pool->unlike = true;
}

void vg_sizes_free(struct vg_pool *pool, uint64_t bytes)
{
	struct vg_size *size = vg_size_find(pool, bytes);

	if (size)
		size->freeing++;
}

void vg_sizes_freed(struct vg_pool *pool, uint64_t bytes, bool freed)
{
	struct vg_size *size = vg_size_find(pool, bytes);

	if (!size || !size->freeing)
		return;
	size->freeing--;
	if (freed && size->live)
		size->live--;
}

uint64_t vg_sizes_due(const struct vg_pool *pool)
{
	uint64_t due = 0;

	for (const struct vg_size *size = pool->sizes; size; size = size->next) {
		uint64_t pieces = size->live + size->lent;

		pieces = pieces > size->had ? pieces : size->had;
		due = vg_add_saturating(due, pieces * size->bytes);
	}
	return due;
}

void vg_sizes_emptied(struct vg_pool *pool)
{
	for (struct vg_size *size = pool->sizes; size; size = size->next)
		size->had = size->live = 0;
}

void vg_sizes_release(struct vg_pool *pool)
{
	while (pool->sizes) {
		struct vg_size *size = pool->sizes;

		pool->sizes = size->next;
		free(size);
	}
}
