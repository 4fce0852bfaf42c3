// SPDX-License-Identifier: Apache-2.0

// This header covers the usage page, which all processes of the container share.

#ifndef VG_USAGE_H
#define VG_USAGE_H

#include "base/error.h"
#include "pages.h"

// vg_usage_open opens and checks the usage page. vg_usage_open returns the page's descriptor, or -1
// with `error` set.
int vg_usage_open(struct vg_pages *pages, struct vg_error *error);

// vg_usage_memory returns the memory that all processes of the container currently use, in bytes.
// Dead processes count until their slots are emptied.
uint64_t vg_usage_memory(struct vg_pages *pages, uint32_t device);

// vg_usage_floor returns a lower bound of the container's use, in bytes, whatever the usage page
// contains. The bound is the memory that the agent observed, corrected by the memory that this
// process was granted or has freed since. The bound is 0 if the agent observed no excess.
uint64_t vg_usage_floor(struct vg_pages *pages, uint32_t device);

#endif
