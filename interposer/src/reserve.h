// SPDX-License-Identifier: Apache-2.0

// Reserving device memory on the usage page, against the container's limit.

#ifndef VG_RESERVE_H
#define VG_RESERVE_H

#include "pages.h"

// vg_hold keeps `bytes` of the limit back for a call of the driver, and returns
// whether they were there. It waits for others' calls that may leave some.
bool vg_hold(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_hold_at_once does so without waiting; that it fails is no refusal yet.
bool vg_hold_at_once(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_settle charges this process with what the call has taken, in place of what
// was held for it.
void vg_settle(struct vg_pages *pages, uint32_t device, uint64_t held, uint64_t taken);

// vg_reserve holds and settles at once.
bool vg_reserve(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_release gives bytes back after the driver has freed them.
void vg_release(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_adjust corrects what this process is charged with, by what it holds, limit or not:
// nothing has been granted or freed.
void vg_adjust(struct vg_pages *pages, uint32_t device, uint64_t before, uint64_t now);

// vg_refused notes a refusal for those who look at the page.
void vg_refused(struct vg_pages *pages, uint32_t device, uint32_t way, uint64_t bytes);

#endif
