// SPDX-License-Identifier: Apache-2.0

// What this process physically holds on a GPU, by the management library: the
// only one to know what contexts and modules take.

#ifndef VG_PHYSICAL_H
#define VG_PHYSICAL_H

#include "state.h"

enum { vg_max_processes = 256 };

// No context is smaller: less growth is not that of a process which made one.
static const uint64_t vg_least_context = 16 * VG_MIB;

// vg_snapshot is the processes on a GPU at one moment.
struct vg_snapshot {
	bool valid; // nothing else was under way in this process
	uint64_t calls; // see state.h
	uint64_t pools; // what they hold, which they may return at any time
	unsigned count;
	struct {
		unsigned pid;
		uint64_t bytes;
	} processes[vg_max_processes];
};

// vg_snapshot_take looks at a GPU, from within one call of the driver that is
// under way. The caller holds state->contexts.
void vg_snapshot_take(struct vg_state *state, uint32_t device, struct vg_snapshot *snapshot);

// vg_snapshot_bytes is what a process held, 0 if it is not listed.
uint64_t vg_snapshot_bytes(const struct vg_snapshot *snapshot, unsigned pid);

// vg_physical_recognise finds out what the management library calls this process,
// which may be a number of another pid namespace: between the snapshots it has
// made a context, and others have not.
void vg_physical_recognise(struct vg_state *state, const struct vg_snapshot *before,
			   const struct vg_snapshot *after);

// vg_grown is by how much this process has grown between two snapshots, where
// that can be told: it must be known by name, must not have acquired or freed
// memory in other threads, nor its pools have returned any. It returns 0 with
// *bytes set, or -1.
int vg_grown(const struct vg_state *state, const struct vg_snapshot *before,
	     const struct vg_snapshot *after, uint64_t *bytes);

#endif
