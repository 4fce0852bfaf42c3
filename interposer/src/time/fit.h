// SPDX-License-Identifier: Apache-2.0

// This header covers properties of the card that probes show: the rate of the card's clock, and the
// length of the card's slices.

#ifndef VG_FIT_H
#define VG_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "probe.h"

enum { vg_turns = 15 };

// vg_fit is the state of the measurements of a card's properties. All times are in ns.
struct vg_fit {
	uint64_t base;     // the probes' base_sent, for which the other fields are valid; 0: none
	bool begun;
	int64_t window;    // the probes' window that was processed last
	int64_t at, delay; // start and least delay of the first window of the fit
	uint32_t journeys; // probes processed
	uint32_t seen;     // stretches of other containers' time processed
	int64_t turns[vg_turns]; // times between two of these stretches
	uint32_t turn_count;
};

// vg_fit_follow processes the probes and reports whether a result is known. vg_fit_follow sets
// `ppb` to the rate by which the GPU's clock is faster than the host's, in parts per billion.
// vg_fit_follow sets `turn` to the length of this process's turn, in ns. A value of 0 means
// unknown.
bool vg_fit_follow(struct vg_fit *fit, const struct vg_probe *probe, int32_t *ppb, uint32_t *turn);

// vg_fit_aliases reports whether probes that were sent after `recorded`, a vg_now time, came back
// together with the work. `end` is the end of the work, in ns since the base event.
bool vg_fit_aliases(const struct vg_probe *probe, int64_t end, uint64_t recorded);

#endif
