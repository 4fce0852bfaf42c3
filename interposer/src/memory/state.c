// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "state.h"

#include <sys/mman.h>

#include "base/mutex.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

_Atomic(struct vg_state *) vg_the_state;

// vg_state_rank sets the ranks of the mutexes. A fork wipes the ranks in the child.
static void vg_state_rank(struct vg_state *state)
{
	if (vg_mutex_has_rank(&state->init))
		return;
	vg_mutex_set_rank(&state->init, VG_RANK_INIT);
	vg_mutex_set_rank(&state->audit_mutex, VG_RANK_AUDIT);
	vg_mutex_set_rank(&state->destroyed_mutex, VG_RANK_DESTROYED);
	vg_mutex_set_rank(&state->pool_mutex, VG_RANK_POOLS);
	vg_mutex_set_rank(&state->correction_mutex, VG_RANK_CORRECT);
	for (size_t i = 0; i < vg_shards; i++)
		vg_mutex_set_rank(&state->table.shards[i].mutex, VG_RANK_TABLE);
}

struct vg_state *vg_state_new(void)
{
	struct vg_state *state = atomic_load_explicit(&vg_the_state, memory_order_acquire);
	struct vg_state *made;

	if (state) {
		vg_state_rank(state);
		return state;
	}
	made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return NULL;
	// A load before the first store would cost a second page fault.
	atomic_store_explicit(&made->ready, 0, memory_order_relaxed);
	vg_state_rank(made);
	if (madvise(made, sizeof *made, MADV_WIPEONFORK) ||
	    !atomic_compare_exchange_strong(&vg_the_state, &state, made)) {
		munmap(made, sizeof *made);
		return state;
	}
	return made;
}

int vg_state_device(const struct vg_state *state, CUdevice device)
{
	if (device < 0 || device >= vg_max_ordinals)
		return -1;
	return (int)state->devices[device] - 1;
}

CUdevice vg_state_ordinal(const struct vg_state *state, uint32_t device)
{
	for (CUdevice i = 0; i < vg_max_ordinals; i++)
		if (vg_state_device(state, i) == (int)device)
			return i;
	return -1;
}
