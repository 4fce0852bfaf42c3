// SPDX-License-Identifier: Apache-2.0

#include "rank.h"

#ifdef VG_DEBUG
#include <stdio.h>
#include <stdlib.h>

static const char *const vg_rank_names[VG_RANK_COUNT] = {
	[VG_RANK_NONE] = "a mutex without a rank",
#define VG_RANK_NAME(rank, mutex) [VG_RANK_##rank] = mutex,
	VG_RANKS(VG_RANK_NAME)
#undef VG_RANK_NAME
};

// vg_ranks_held holds the number of mutexes that the thread holds, by rank. Some mutexes share a
// rank, such as the mutexes of the table's parts. A thread holds only one mutex of a rank at a
// time.
static __thread uint32_t vg_ranks_held[VG_RANK_COUNT];

static void vg_rank_broken(const char *what, uint32_t rank, const char *beside)
{
	fprintf(stderr, "nri-vgpu: lock order: %s %s%s\n", what,
		rank < VG_RANK_COUNT ? vg_rank_names[rank] : "a mutex of an unknown rank", beside);
	abort();
}

void vg_rank_check(uint32_t rank)
{
	char beside[64];

	if (rank == VG_RANK_NONE || rank >= VG_RANK_COUNT)
		vg_rank_broken("took", rank, "");
	for (uint32_t i = rank; i < VG_RANK_COUNT; i++) {
		if (!vg_ranks_held[i])
			continue;
		snprintf(beside, sizeof beside, " while holding %s", vg_rank_names[i]);
		vg_rank_broken("took", rank, beside);
	}
}

void vg_rank_enter(uint32_t rank)
{
	vg_ranks_held[rank]++;
}

void vg_rank_leave(uint32_t rank)
{
	if (!vg_ranks_held[rank])
		vg_rank_broken("released, without holding it,", rank, "");
	vg_ranks_held[rank]--;
}
#endif
