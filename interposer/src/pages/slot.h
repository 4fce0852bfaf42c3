// SPDX-License-Identifier: Apache-2.0

// This header covers slots of the usage page. Each process that uses CUDA has a slot.

#ifndef VG_SLOT_H
#define VG_SLOT_H

#include "base/error.h"
#include "pages.h"

// vg_slot_take maps the usage page for this process alone, and takes a free slot on the page.
// vg_slot_take returns 0, or -1 with `error` set.
int vg_slot_take(struct vg_pages *pages, struct vg_error *error);

// vg_slot_map maps the usage page without taking a slot. The child of a fork inherits the mapping.
// vg_slot_map returns 0, or -1 with `error` set.
int vg_slot_map(struct vg_pages *pages, struct vg_error *error);

// vg_slots_reap empties the slots of dead processes that have memory on this GPU. vg_slots_reap
// returns false if a process with memory on this GPU is still exiting.
bool vg_slots_reap(struct vg_pages *pages, uint32_t device);

// vg_slots_settle empties the slots of dead processes with unmeasured work on this GPU, and charges
// the work.
void vg_slots_settle(struct vg_pages *pages, uint32_t device);

// vg_slots_live reports for each slot in use whether a living process holds the slot. A process
// whose state is unknown counts as alive.
void vg_slots_live(const struct vg_pages *pages, bool live[VG_MAX_SLOTS]);

#endif
