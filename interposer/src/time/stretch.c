// SPDX-License-Identifier: Apache-2.0

#include "stretch.h"

#include <stddef.h>

enum {
	vg_late_ns = 60000, // excess over the least delay that shows another process on the GPU
	// vg_stretch_window_ns is the length of a window. The least delay covers the last one or two
	// windows. The clocks of GPU and host drift apart, by some 100 ppm. If all probes in these
	// windows are late, the earliest probes count as punctual. The deduction is then too small, but
	// never too large.
	vg_stretch_window_ns = 50000000,
};

// vg_offset_follow updates the least delay of the last probes.
static void vg_offset_follow(struct vg_stretches *seen, int64_t sent, int64_t delay)
{
	if (!seen->offset_known || sent - seen->window > 2 * vg_stretch_window_ns) {
		seen->before = seen->least = delay;
		seen->window = sent;
	} else if (sent - seen->window > vg_stretch_window_ns) {
		seen->before = seen->least;
		seen->least = delay;
		seen->window += vg_stretch_window_ns;
	}
	seen->offset_known = true;
	seen->least = delay < seen->least ? delay : seen->least;
	seen->offset = seen->before < seen->least ? seen->before : seen->least;
}

static const struct vg_stretch *vg_stretch_last(const struct vg_stretches *seen)
{
	return seen->count ? &seen->others[(seen->count - 1) % vg_most_stretches] : NULL;
}

// vg_stretch_begin returns the time at which the GPU switched to another process, before a late
// probe. The result is halfway between the last punctual probe and the late probe. That estimate is
// right on average.
static int64_t vg_stretch_begin(const struct vg_stretches *seen, int64_t sent)
{
	if (sent - seen->held > vg_probe_gap_ns)
		return sent;
	return seen->held + (sent - seen->held) / 2;
}

void vg_stretch_begin_anew(struct vg_stretches *seen)
{
	seen->offset_known = false;
	seen->count = 0;
	seen->journey_count = 0;
	seen->held = seen->since = seen->until = INT64_MIN / 2;
}

void vg_stretch_note(struct vg_stretches *seen, int64_t sent, int64_t back)
{
	const struct vg_stretch *last = vg_stretch_last(seen);
	struct vg_stretch stretch;

	seen->journeys[seen->journey_count++ % vg_most_journeys] = (struct vg_journey){sent, back};
	vg_offset_follow(seen, sent, back - sent);
	if (sent + seen->offset - seen->until > vg_probe_gap_ns)
		seen->since = sent + seen->offset;
	seen->until = back;
	if (back - sent <= seen->offset + vg_late_ns) {
		seen->held = sent;
		return;
	}
	stretch = (struct vg_stretch){vg_stretch_begin(seen, sent) + seen->offset, back};
	if (last && stretch.from < last->to)
		stretch.from = last->to; // another probe of the same stretch
	// Probes that are sent before this probe has come back belong to the same stretch.
	if (back - seen->offset > seen->held)
		seen->held = back - seen->offset;
	if (stretch.from < stretch.to)
		seen->others[seen->count++ % vg_most_stretches] = stretch;
}

int64_t vg_stretch_overlap(const struct vg_stretches *seen, struct vg_stretch stretch)
{
	uint32_t known = seen->count < vg_most_stretches ? seen->count : vg_most_stretches;
	int64_t sum = 0;

	for (uint32_t i = 0; i < known; i++) {
		const struct vg_stretch *other = &seen->others[i];
		int64_t from = other->from > stretch.from ? other->from : stretch.from;
		int64_t to = other->to < stretch.to ? other->to : stretch.to;

		if (to > from)
			sum += to - from;
	}
	return sum;
}
