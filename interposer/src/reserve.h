// SPDX-License-Identifier: Apache-2.0

// Reserving device memory on the usage page, against the container's limit.

#ifndef VG_RESERVE_H
#define VG_RESERVE_H

#include "pages.h"

// vg_reserve takes `bytes` of the limit for this process, and returns whether
// they were there. It is to be called before the driver is asked.
bool vg_reserve(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_release gives bytes back after the driver has freed them, or has refused.
void vg_release(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_force takes bytes that the process has got already, limit or not.
void vg_force(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_refused notes a refusal for those who look at the page.
void vg_refused(struct vg_pages *pages, uint32_t device, uint32_t way, uint64_t bytes);

#endif
