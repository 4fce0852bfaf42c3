// SPDX-License-Identifier: Apache-2.0

// This header covers the evaluation of probes. Probes show the stretches of time in which other
// processes had the GPU, and the clock and the slices of the card.

#ifndef VG_STRETCH_H
#define VG_STRETCH_H

#include <stdbool.h>
#include <stdint.h>

enum {
	vg_most_stretches = 1024, // remembered stretches of other containers' time
	vg_most_journeys = 1024,  // remembered probes
	vg_most_turns = 15,       // turns of this process of which the median is the slice
	vg_probe_ns = 250000,     // time between two probes
	vg_probe_gap_ns = 2000000, // time without a probe from which the state is unknown
	vg_probe_slow_ns = 30000, // a slower call or event may have waited for something else
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
	bool first_known;
	int64_t first, first_least; // start and least delay of the first complete window
	int64_t held;    // latest `sent` at which this process certainly had the GPU
	int64_t since;   // start of the last run of probes without a gap, on the GPU's clock
	int64_t until;   // end of the last run of probes, on the GPU's clock
	struct vg_stretch others[vg_most_stretches];
	uint32_t count; // number of all stretches
	struct vg_journey journeys[vg_most_journeys];
	uint32_t journey_count; // number of all probes
	int64_t turns[vg_most_turns]; // the last turns of this process, sorted
	uint32_t turn_count;
	// Properties of the card, for the agent. No limit depends on these properties.
	int32_t drift_ppb; // rate by which the GPU's clock is faster; 0: unknown
	uint32_t slice_ns; // length of a turn of this process; 0: unknown
};

// vg_stretch_begin_anew drops all stretches, for a new base event.
void vg_stretch_begin_anew(struct vg_stretches *seen);

// vg_stretch_note adds a probe that was sent at `sent`, on the host's clock, and came back at
// `back`, on the GPU's clock, in ns.
void vg_stretch_note(struct vg_stretches *seen, int64_t sent, int64_t back);

// vg_stretch_overlap returns the part of a stretch that belonged to other processes, in ns.
int64_t vg_stretch_overlap(const struct vg_stretches *seen, struct vg_stretch stretch);

// vg_stretch_own returns the part of a stretch for which this process had the GPU, in ns: the time
// between successive punctual probes. The result is too large if slices of other processes are shorter
// than twice vg_probe_ns. The same applies if the card stamps events of idle streams while another
// process has the GPU. The process is then charged too much, never too little.
int64_t vg_stretch_own(const struct vg_stretches *seen, struct vg_stretch stretch);

// vg_stretch_pass returns whether probes that were sent after `after` passed the work that ended at
// `end`. Only a probe that comes back before the end shows that probes do not queue behind the work
// in the same hardware queue.
enum vg_pass { vg_pass_unknown, vg_passed, vg_pass_aliased };
enum vg_pass vg_stretch_pass(const struct vg_stretches *seen, int64_t after, int64_t end);

#endif
