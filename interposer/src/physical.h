// SPDX-License-Identifier: Apache-2.0

// What this process physically holds on a GPU, by the management library: the
// only one to know what contexts and modules take.

#ifndef VG_PHYSICAL_H
#define VG_PHYSICAL_H

#include "state.h"

enum { vg_max_processes = 256 };

// vg_snapshot is the processes on a GPU at one moment.
struct vg_snapshot {
	bool valid;
	uint32_t device;
	uint64_t changes; // this process's accounted changes so far
	unsigned count;
	struct {
		unsigned pid;
		uint64_t bytes;
	} processes[vg_max_processes];
};

// vg_snapshot_take looks at a GPU. The caller holds state->contexts.
void vg_snapshot_take(struct vg_state *state, uint32_t device, struct vg_snapshot *snapshot);

// vg_grown is by how much this process has grown between two snapshots, where
// that can be told: this process must not have acquired or freed memory in
// other threads. Where its pid is not among those listed (they may be another
// namespace's), it takes the process that grew most to be this one. It returns
// 0 with *bytes set, or -1.
int vg_grown(const struct vg_snapshot *before, const struct vg_snapshot *after, uint64_t *bytes);

#endif
