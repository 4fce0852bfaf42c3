// SPDX-License-Identifier: Apache-2.0

// This header covers physical memory that a program creates or imports, and maps.

#ifndef VG_PHYSICAL_H
#define VG_PHYSICAL_H

#include "state.h"

// vg_physical is one piece of physical memory. The table has entries for the handle and for each
// mapping. All these entries point to the vg_physical.
struct vg_physical {
	_Atomic uint32_t references; // mappings, and the program's references to the handle
	_Atomic uint32_t exports;
	uint32_t device;
	bool imported;
	uint64_t bytes;
};

// vg_physical_use takes a reference to the memory of an entry, for vg_table_with.
struct vg_physical_use {
	struct vg_physical *physical;
};

struct vg_entry *vg_physical_use(struct vg_entry *entry, void *context);

// vg_physical_put drops a reference. With the last reference, vg_physical_put releases the charge.
void vg_physical_put(struct vg_state *state, struct vg_physical *physical);

#endif
