// SPDX-License-Identifier: Apache-2.0

// This header covers statistics of probes, for the agent. The statistics are the number of rejected
// results, the drift of the GPU's clock, and the length of the GPU's time slices. No limit depends
// on these statistics.

#ifndef VG_DISTRUST_H
#define VG_DISTRUST_H

#include <stdint.h>

#include "driver/driver.h"

struct vg_meter;

// vg_distrust_lapsed counts a claim on other containers' time if `ns` of the claim, a positive
// number, has lapsed.
void vg_distrust_lapsed(const struct vg_meter *meter, int64_t ns);

// vg_distrust_unpassed counts work if the work's probes came back together with the work's end
// event. `recorded` is the vg_now at which the end event was recorded.
void vg_distrust_unpassed(const struct vg_meter *meter, CUevent end, uint64_t recorded);

// vg_distrust_follow records the clock's drift and the slices' length from the probes that have
// come back.
void vg_distrust_follow(struct vg_meter *meter);

#endif
