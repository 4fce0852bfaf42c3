// SPDX-License-Identifier: Apache-2.0

// This header covers work of unknown length, whose charge is corrected after the measurement. Work
// whose stream, context or process ends before the measurement is charged all time since its
// launch. Work that ends with an exception is charged all time until the interposer detects the
// exception.

#ifndef VG_UNMEASURED_H
#define VG_UNMEASURED_H

#include <stdint.h>

struct vg_pages;

enum { vg_unmeasured_most = 8 }; // limit of unfinished segments of unknown length

struct vg_unmeasured {
	uint32_t count;   // unfinished segments, and 1 for the streams without events
	uint64_t since;   // vg_now of the first unfinished launch; 0: none
	uint64_t settled; // end of the time charged so far for lost work, as vg_now
};

// vg_unmeasured_begin enters work that is about to be launched on a GPU, and vg_unmeasured_end
// removes the work. Both functions write the start of unmeasured work to this process's slot.
void vg_unmeasured_begin(struct vg_unmeasured *unmeasured, const struct vg_pages *pages, uint32_t device,
			 uint64_t now);
void vg_unmeasured_end(struct vg_unmeasured *unmeasured, const struct vg_pages *pages, uint32_t device);

// vg_unmeasured_lose returns the charge, in ns, for work that was launched at `since` and will not
// be measured. The charge is all time until `now`, less the time already `charged`. Pieces that run
// side by side share that time.
int64_t vg_unmeasured_lose(struct vg_unmeasured *unmeasured, uint64_t since, int64_t charged, uint64_t now);

#endif
