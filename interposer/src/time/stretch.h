// SPDX-License-Identifier: Apache-2.0

// This header covers stretches of time in which other processes had the GPU, according to probes.

#ifndef VG_STRETCH_H
#define VG_STRETCH_H

#include <stdbool.h>
#include <stdint.h>

enum {
	vg_most_stretches = 1024, // remembered stretches of other containers' time
	vg_most_journeys = 64,    // remembered probes
	vg_probe_gap_ns = 2000000, // time without a probe from which the state is unknown
};

// vg_journey has the times of a probe, in ns since the base event. `sent` is on the host's clock,
// and `back` is on the GPU's clock.
struct vg_journey {
	int64_t sent, back;
};

// vg_stretch is a stretch of time on the GPU's clock, in ns since the base event.
struct vg_stretch {
	int64_t from, to;
};

// vg_stretches is a record of other containers' time.
struct vg_stretches {
	bool offset_known;
	int64_t offset;  // least delay of recent probes, from the host's clock to the GPU's
	int64_t before, least; // least delays of the previous window and of the current window
	int64_t window;  // start of the current window: a probe's `sent`
	int64_t held;    // latest `sent` at which this process certainly had the GPU
	int64_t since;   // start of the last run of probes without a gap, on the GPU's clock
	int64_t until;   // end of the last run of probes, on the GPU's clock
	struct vg_stretch others[vg_most_stretches];
	uint32_t count; // number of all stretches
	struct vg_journey journeys[vg_most_journeys];
	uint32_t journey_count; // number of all probes
};

// vg_stretch_begin_anew drops all stretches, for a new base event.
void vg_stretch_begin_anew(struct vg_stretches *seen);

// vg_stretch_note adds a probe that was sent at `sent`, on the host's clock, and came back at
// `back`, on the GPU's clock, in ns.
void vg_stretch_note(struct vg_stretches *seen, int64_t sent, int64_t back);

// vg_stretch_overlap returns the part of a stretch that belonged to other processes, in ns.
int64_t vg_stretch_overlap(const struct vg_stretches *seen, struct vg_stretch stretch);

#endif
