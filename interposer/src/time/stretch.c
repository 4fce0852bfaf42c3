// SPDX-License-Identifier: Apache-2.0

// What probes tell of the time that was not ours.

#include "probe.h"

enum {
	vg_late_ns = 60000, // later than the least delay: the GPU was not ours
	// The least delay is that of the last one or two of these: the clocks of GPU and host
	// drift apart, by 100 ppm or so. Where all probes in them were late, those that were
	// least so are taken for punctual: less is deducted then, and never more.
	vg_window_ns = 50000000,
};

// vg_offset_follow keeps the least delay of the last probes.
static void vg_offset_follow(struct vg_probe *probe, int64_t sent, int64_t delay)
{
	if (!probe->offset_known || sent - probe->window > 2 * vg_window_ns) {
		probe->before = probe->least = delay;
		probe->window = sent;
	} else if (sent - probe->window > vg_window_ns) {
		probe->before = probe->least;
		probe->least = delay;
		probe->window += vg_window_ns;
	}
	probe->offset_known = true;
	probe->least = delay < probe->least ? delay : probe->least;
	probe->offset = probe->before < probe->least ? probe->before : probe->least;
}

static const struct vg_stretch *vg_stretch_last(const struct vg_probe *probe)
{
	return probe->count ? &probe->others[(probe->count - 1) % vg_stretches] : NULL;
}

// vg_stretch_begin is when the GPU went to another, seen from a late probe: on
// average in the middle between it and the last one that was not late.
static int64_t vg_stretch_begin(const struct vg_probe *probe, int64_t sent)
{
	if (sent - probe->held > vg_probe_gap_ns)
		return sent;
	return probe->held + (sent - probe->held) / 2;
}

void vg_probe_note(struct vg_probe *probe, int64_t sent, int64_t back)
{
	const struct vg_stretch *last = vg_stretch_last(probe);
	struct vg_stretch stretch;

	probe->journeys[probe->journey_count++ % vg_journeys] = (struct vg_journey){sent, back};
	vg_offset_follow(probe, sent, back - sent);
	if (sent + probe->offset - probe->until > vg_probe_gap_ns)
		probe->since = sent + probe->offset;
	probe->until = back;
	if (back - sent <= probe->offset + vg_late_ns) {
		probe->held = sent;
		return;
	}
	stretch = (struct vg_stretch){vg_stretch_begin(probe, sent) + probe->offset, back};
	if (last && stretch.from < last->to)
		stretch.from = last->to; // another probe of the same stretch
	// What was sent from now on and before it came back is of the same stretch.
	if (back - probe->offset > probe->held)
		probe->held = back - probe->offset;
	if (stretch.from < stretch.to)
		probe->others[probe->count++ % vg_stretches] = stretch;
}

int64_t vg_probe_overlap(const struct vg_probe *probe, struct vg_stretch stretch)
{
	uint32_t known = probe->count < vg_stretches ? probe->count : vg_stretches;
	int64_t sum = 0;

	for (uint32_t i = 0; i < known; i++) {
		const struct vg_stretch *other = &probe->others[i];
		int64_t from = other->from > stretch.from ? other->from : stretch.from;
		int64_t to = other->to < stretch.to ? other->to : stretch.to;

		if (to > from)
			sum += to - from;
	}
	return sum;
}
