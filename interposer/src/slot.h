// SPDX-License-Identifier: Apache-2.0

// Slots of the usage page: one for each process that uses CUDA.

#ifndef VG_SLOT_H
#define VG_SLOT_H

#include "pages.h"

// vg_slot_take maps the usage page, owned by this process alone, and takes a free
// slot on it. It returns 0, or -1 with `error` set.
int vg_slot_take(struct vg_pages *pages, struct vg_error *error);

// vg_usage_map maps the usage page without taking a slot. A fork's child inherits the
// mapping. It returns 0, or -1 with `error` set.
int vg_usage_map(struct vg_pages *pages, struct vg_error *error);

// vg_slots_reap empties the slots of dead processes that have memory on this GPU. It
// returns false where one is not gone yet that will leave some soon.
bool vg_slots_reap(struct vg_pages *pages, uint32_t device);

// vg_slots_live tells for each slot in use whether a living process holds it. Where
// that cannot be told, it takes them to live.
void vg_slots_live(const struct vg_pages *pages, bool live[VG_MAX_SLOTS]);

#endif
