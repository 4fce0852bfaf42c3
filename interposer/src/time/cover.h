// SPDX-License-Identifier: Apache-2.0

// This header covers the union of stretches of time. The union keeps the last vg_covers stretches.

#ifndef VG_COVER_H
#define VG_COVER_H

#include <stdint.h>

enum { vg_covers = 32 };

// vg_cover is a stretch of time that is accounted for, in ns since the base event.
struct vg_cover {
	int64_t from, to;
};

// vg_cover_add adds a stretch to the union, and returns the part of the stretch that was not in the
// union, in ns.
int64_t vg_cover_add(struct vg_cover *covers, uint32_t *count, struct vg_cover stretch);

#endif
