// SPDX-License-Identifier: Apache-2.0

// This header covers statistics about probes, for the agent: how often their results were rejected,
// how fast the GPU's clock drifts, and how long its time slices are. No limit depends on these
// statistics.

#ifndef VG_DISTRUST_H
#define VG_DISTRUST_H

#include <stdint.h>

#include "driver/driver.h"

struct vg_meter;

// vg_distrust_lapsed counts a claim on others' time of which `ns` lapsed, if `ns` is positive.
void vg_distrust_lapsed(const struct vg_meter *meter, int64_t ns);

// vg_distrust_unpassed counts work whose probes came back together with its end event. `recorded`
// is the vg_now at which that event was recorded.
void vg_distrust_unpassed(const struct vg_meter *meter, CUevent end, uint64_t recorded);

// vg_distrust_follow records the clock's drift and the slices' length from the probes that have
// come back.
void vg_distrust_follow(struct vg_meter *meter);

#endif
