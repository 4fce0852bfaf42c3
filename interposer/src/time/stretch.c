// SPDX-License-Identifier: Apache-2.0

#include "stretch.h"

#include <stddef.h>

#include "base/number.h"

enum {
	vg_late_ns = 60000, // excess over the least delay that shows another process on the GPU
	// vg_stretch_window_ns is the length of a window. The least delay covers the last one or two
	// windows. The clocks of GPU and host drift apart, by some 100 ppm. If all probes in these
	// windows are late, the earliest probes count as punctual. The deduction is then too small, but
	// never too large.
	vg_stretch_window_ns = 50000000,
	vg_drift_least_ns = 1000000000, // least time between the two windows that show a drift
	vg_drift_most_ppb = 1000000,    // a larger drift is an error of measurement
	vg_aliases = 2, // probes that show a shared queue: one probe may be sent just before the end
};

// vg_drift_follow compares the least delay of a complete window with the least delay of the first
// complete window since the base event.
static void vg_drift_follow(struct vg_stretches *seen)
{
	int64_t over = seen->window - seen->first;
	int64_t ppb;

	if (!seen->first_known) {
		seen->first_known = true;
		seen->first = seen->window;
		seen->first_least = seen->least;
		return;
	}
	if (over < vg_drift_least_ns)
		return;
	ppb = (seen->least - seen->first_least) * 1000 / (over / 1000000);
	if (ppb <= vg_drift_most_ppb && ppb >= -vg_drift_most_ppb)
		seen->drift_ppb = ppb ? (int32_t)ppb : 1; // 0 means unknown
}

// vg_offset_follow updates the least delay of the last probes.
static void vg_offset_follow(struct vg_stretches *seen, int64_t sent, int64_t delay)
{
	if (!seen->offset_known || sent - seen->window > 2 * vg_stretch_window_ns) {
		seen->before = seen->least = delay;
		seen->window = sent;
	} else if (sent - seen->window > vg_stretch_window_ns) {
		vg_drift_follow(seen);
		seen->before = seen->least;
		seen->least = delay;
		seen->window += vg_stretch_window_ns;
	}
	seen->offset_known = true;
	seen->least = vg_least(delay, seen->least);
	seen->offset = vg_least(seen->before, seen->least);
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

// vg_turn_follow adds the time between two stretches of other containers' time to the turns. Probes
// do not show turns that are shorter than the interval of the probes.
static void vg_turn_follow(struct vg_stretches *seen, const struct vg_stretch *last, int64_t from)
{
	int64_t turn = last ? from - last->to : 0;
	uint32_t at = seen->turn_count;

	if (!last || last->to < seen->since || turn < vg_probe_ns)
		return;
	for (; at > 0 && seen->turns[at - 1] > turn; at--)
		seen->turns[at] = seen->turns[at - 1];
	seen->turns[at] = turn;
	if (++seen->turn_count < vg_most_turns)
		return;
	seen->slice_ns = (uint32_t)vg_min((uint64_t)seen->turns[vg_most_turns / 2], UINT32_MAX);
	seen->turn_count = 0;
}

void vg_stretch_begin_anew(struct vg_stretches *seen)
{
	seen->offset_known = seen->first_known = false;
	seen->count = 0;
	seen->turn_count = 0;
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
	if (stretch.from >= stretch.to)
		return;
	vg_turn_follow(seen, last, stretch.from);
	seen->others[seen->count++ % vg_most_stretches] = stretch;
}

// vg_journey_last returns the probe that was sent `ago` probes before the last probe, or NULL.
static const struct vg_journey *vg_journey_last(const struct vg_stretches *seen, uint32_t ago)
{
	uint32_t known = (uint32_t)vg_min(seen->journey_count, vg_most_journeys);

	return ago < known ? &seen->journeys[(seen->journey_count - 1 - ago) % vg_most_journeys] : NULL;
}

static bool vg_journey_is_late(const struct vg_stretches *seen, const struct vg_journey *journey)
{
	return journey->back - journey->sent > seen->offset + vg_late_ns;
}

enum vg_pass vg_stretch_pass(const struct vg_stretches *seen, int64_t after, int64_t end)
{
	const struct vg_journey *journey;
	uint32_t with = 0;

	for (uint32_t i = 0; (journey = vg_journey_last(seen, i)) && journey->sent > after; i++) {
		int64_t late = journey->back - end;

		if (late < -vg_probe_slow_ns)
			return vg_passed;
		with += late < vg_probe_slow_ns;
	}
	return with >= vg_aliases ? vg_pass_aliased : vg_pass_unknown;
}

// vg_stretch_both returns the length of the intersection of two stretches, in ns.
static int64_t vg_stretch_both(struct vg_stretch one, struct vg_stretch other)
{
	return vg_most(vg_least(one.to, other.to) - vg_most(one.from, other.from), 0);
}

int64_t vg_stretch_own(const struct vg_stretches *seen, struct vg_stretch stretch)
{
	const struct vg_journey *to = vg_journey_last(seen, 0), *from;
	int64_t sum = 0;

	for (uint32_t i = 1; (from = vg_journey_last(seen, i)) && to->sent + seen->offset > stretch.from; i++) {
		if (to->sent - from->sent <= 2 * vg_probe_ns && !vg_journey_is_late(seen, from) &&
		    !vg_journey_is_late(seen, to))
			sum += vg_stretch_both(stretch, (struct vg_stretch){from->sent + seen->offset,
									    to->sent + seen->offset});
		to = from;
	}
	return sum;
}

int64_t vg_stretch_overlap(const struct vg_stretches *seen, struct vg_stretch stretch)
{
	uint32_t known = (uint32_t)vg_min(seen->count, vg_most_stretches);
	int64_t sum = 0;

	for (uint32_t i = 0; i < known; i++)
		sum += vg_stretch_both(seen->others[i], stretch);
	return sum;
}
