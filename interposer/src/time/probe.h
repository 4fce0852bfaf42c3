// SPDX-License-Identifier: Apache-2.0

// Probes: events on a stream of our own, recorded every quarter of a
// millisecond while long work runs. The GPU takes an event's time when the
// process has it; where another process's slice runs, at the end of that. So a
// probe that comes late tells which time was not ours, without a word from
// anybody else. Short work needs none: some of it always runs within a slice.

#ifndef VG_PROBE_H
#define VG_PROBE_H

#include <stdbool.h>

#include "driver.h"

enum {
	vg_probes = 32,         // that may be under way
	vg_stretches = 1024,    // of others' time that are remembered
	vg_probe_ns = 250000,   // between two
	vg_probe_gap_ns = 2000000, // without any: nothing is known
	vg_journeys = 64,          // of probes that are remembered
};

// How long times are told from one base event, of probes or of segments: a float of
// milliseconds resolves 0.25 µs until then.
static const uint64_t vg_base_life_ns = 4000000000;

// vg_journey is when a probe was sent, in ns since the base event was on the host's clock, and
// when it came back, in ns since that on the GPU's.
struct vg_journey {
	int64_t sent, back;
};

// vg_stretch is a stretch of time on the GPU's clock, in ns since the base event.
struct vg_stretch {
	int64_t from, to;
};

struct vg_probe {
	uint64_t context; // that all below belongs to; 0: none
	CUstream stream;
	CUevent base;
	uint64_t base_sent; // vg_now when the base event was recorded
	CUevent events[vg_probes];
	uint64_t sent[vg_probes]; // as vg_now; 0: nobody knows exactly
	uint32_t head, tail; // count probes
	bool offset_known;
	int64_t offset;  // least delay of a probe lately, from the host's clock to the GPU's…
	int64_t before, least; // …in the window before this one, and in this one…
	int64_t window;  // …which began then, as sent
	int64_t held;    // latest time at which the GPU was surely ours, as sent
	int64_t since;   // since when probes were sent without a gap…
	int64_t until;   // …and until when, on the GPU's clock
	struct vg_stretch others[vg_stretches];
	uint32_t count; // of stretches ever noted
	struct vg_journey journeys[vg_journeys];
	uint32_t journey_count; // ever noted
};

// vg_probe_send sends a probe. Where it cannot, nothing is known.
void vg_probe_send(struct vg_probe *probe, uint64_t context, uint64_t now);

// vg_probe_harvest takes in the probes that have come back.
void vg_probe_harvest(struct vg_probe *probe);

// vg_probe_others says how much of the `interval` ns before the event `end` was
// not ours; -1 where there were no probes to tell.
int64_t vg_probe_others(const struct vg_probe *probe, CUevent end, int64_t interval);

// vg_probe_seen is how much of it surely was not, where there were probes for a part of it:
// a thread that sends them may have had to wait for a processor.
int64_t vg_probe_seen(const struct vg_probe *probe, CUevent end, int64_t interval);

// vg_probe_passes reports whether a probe came back before the event `end`, although it was sent
// after that was recorded, at this vg_now. Only then is it known that probes do not stand in the
// same queue of the hardware, behind the work that they are to tell of.
bool vg_probe_passes(const struct vg_probe *probe, CUevent end, uint64_t recorded);

// vg_probe_drop forgets all, when the context has ended.
void vg_probe_drop(struct vg_probe *probe);

// vg_probe_note takes in one probe that was sent at `sent` and came back at
// `back`, each on its own clock, in ns.
void vg_probe_note(struct vg_probe *probe, int64_t sent, int64_t back);

// vg_probe_overlap is how much of a stretch was not ours.
int64_t vg_probe_overlap(const struct vg_probe *probe, struct vg_stretch stretch);

#endif
