// SPDX-License-Identifier: Apache-2.0

// What probes are worth, for the agent: how often they were not believed, how fast the GPU's
// clock goes and how long its slices are, as far as probes tell. Nothing of the limit depends
// on this.

#ifndef VG_DISTRUST_H
#define VG_DISTRUST_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

struct vg_meter;
struct vg_probe;

enum { vg_turns = 15 };

// vg_fit is what is being learnt of the card. All times are in ns.
struct vg_fit {
	uint64_t base;     // the probes' base_sent, to which the rest belongs; 0: none
	bool begun;
	int64_t window;    // the probes' window that was seen last
	int64_t at, delay; // of the window with which the fit of the clocks began
	uint32_t journeys; // the probes that were seen
	uint32_t seen;     // stretches of others' time that were seen
	int64_t turns[vg_turns]; // between two of these
	uint32_t turn_count;
};

// vg_distrust_lapsed counts a claim on others' time, where ns of it are given up.
void vg_distrust_lapsed(const struct vg_meter *meter, int64_t ns);

// vg_distrust_unpassed counts the probes of work that ended with this event, recorded at
// this vg_now, if they came back with it.
void vg_distrust_unpassed(const struct vg_meter *meter, CUevent end, uint64_t recorded);

// vg_distrust_follow learns from the probes that have come back.
void vg_distrust_follow(struct vg_meter *meter);

// vg_fit_follow learns from the probes. It reports whether it learnt anything: by how much the
// GPU's clock is faster than the host's, in parts per billion, and how long a turn of this
// process is, in ns; 0 where it did not learn it.
bool vg_fit_follow(struct vg_fit *fit, const struct vg_probe *probe, int32_t *ppb, uint32_t *turn);

// vg_probe_aliases reports whether probes that were sent after `recorded`, as vg_now, came back
// with work that ended at `end`, in ns since the base event.
bool vg_probe_aliases(const struct vg_probe *probe, int64_t end, uint64_t recorded);

#endif
