// SPDX-License-Identifier: Apache-2.0

// This header covers the reservation of device memory on the usage page, within the container's
// limit.

#ifndef VG_RESERVE_H
#define VG_RESERVE_H

#include "pages.h"

// vg_reserve_hold reserves `bytes` of the limit for a call of the driver, and reports whether the
// limit had room. vg_reserve_hold waits for pending calls that may leave room.
bool vg_reserve_hold(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_reserve_hold_at_once reserves `bytes` without waiting. If vg_reserve_hold_at_once returns
// false, the caller must not refuse yet.
bool vg_reserve_hold_at_once(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_reserve_settle charges this process the memory that the call has taken, and releases the bytes
// that were held for the call.
void vg_reserve_settle(struct vg_pages *pages, uint32_t device, uint64_t held, uint64_t taken);

// vg_reserve_release releases bytes that the driver has freed.
void vg_reserve_release(struct vg_pages *pages, uint32_t device, uint64_t bytes);

// vg_reserve_adjust corrects this process's charge from `before` to `now`, whatever the limit is,
// because no memory was granted or freed.
void vg_reserve_adjust(struct vg_pages *pages, uint32_t device, uint64_t before, uint64_t now);

// vg_reserve_refused records a refusal on the usage page, for readers of the page.
void vg_reserve_refused(struct vg_pages *pages, uint32_t device, uint32_t way, uint64_t bytes);

#endif
