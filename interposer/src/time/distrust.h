// SPDX-License-Identifier: Apache-2.0

// This header covers statistics of probes, for the agent. The statistics are the number of rejected
// results, the drift of the GPU's clock, and the length of the GPU's time slices. No limit depends
// on these statistics.

#ifndef VG_DISTRUST_H
#define VG_DISTRUST_H

#include "meter.h"

// vg_distrust_lapsed counts a claim on other containers' time if `ns` of the claim, a positive
// number, has lapsed.
void vg_distrust_lapsed(const struct vg_meter *meter, int64_t ns);

// vg_distrust_aliased counts work whose probes queued behind the work.
void vg_distrust_aliased(const struct vg_meter *meter);

// vg_distrust_follow records the clock's drift and the slices' length.
void vg_distrust_follow(const struct vg_meter *meter);

#endif
