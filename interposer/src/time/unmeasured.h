// SPDX-License-Identifier: Apache-2.0

// This header covers work of unknown length, which is charged once it was measured. Work whose
// stream, context or process ends first is charged all time since its launch.

#ifndef VG_UNMEASURED_H
#define VG_UNMEASURED_H

#include <stdint.h>

struct vg_pages;

enum { vg_unmeasured_most = 8 }; // segments of such work that may be under way

struct vg_unmeasured {
	uint32_t count;   // segments under way, and 1 for the streams without events
	uint64_t since;   // launch of the first of them, as vg_now; 0: none
	uint64_t settled; // end of the time charged so far for lost work, as vg_now
};

// vg_unmeasured_begin enters work that is about to be launched on a GPU, and vg_unmeasured_end
// removes it. Both write the start of such work to this process's slot.
void vg_unmeasured_begin(struct vg_unmeasured *unmeasured, const struct vg_pages *pages, uint32_t device,
			 uint64_t now);
void vg_unmeasured_end(struct vg_unmeasured *unmeasured, const struct vg_pages *pages, uint32_t device);

// vg_unmeasured_lose returns the charge, in ns, for work that was launched at `since` and will not
// be measured: all time until now, less the time already `charged`. Pieces side by side share that
// time.
int64_t vg_unmeasured_lose(struct vg_unmeasured *unmeasured, uint64_t since, int64_t charged, uint64_t now);

#endif
