// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "state.h"

#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

_Atomic(struct vg_state *) vg_the_state;

struct vg_state *vg_state_new(void)
{
	struct vg_state *state = atomic_load_explicit(&vg_the_state, memory_order_acquire);
	struct vg_state *made;

	if (state)
		return state;
	made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return NULL;
	if (madvise(made, sizeof *made, MADV_WIPEONFORK) ||
	    !atomic_compare_exchange_strong(&vg_the_state, &state, made)) {
		munmap(made, sizeof *made);
		return state;
	}
	return made;
}

int vg_device_index(const struct vg_state *state, CUdevice device)
{
	if (device < 0 || device >= vg_max_ordinals)
		return -1;
	return (int)state->devices[device] - 1;
}
