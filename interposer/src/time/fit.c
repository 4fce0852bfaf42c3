// SPDX-License-Identifier: Apache-2.0

#include "fit.h"

#include "base/number.h"

enum {
	vg_fit_least_ns = 1000000000,  // least time between the two windows that show a drift
	// vg_fit_gap_ns is the longest time between two complete windows.
	vg_fit_gap_ns = 100000000,
	vg_drift_most_ppb = 1000000,   // a larger drift is an error of measurement
	// vg_alias_ns is the longest time between the end of work and the end of a probe that
	// queued behind the work.
	vg_alias_ns = 30000,
	vg_alias_least = 2,            // a single probe may have been sent just before the end
};

bool vg_fit_aliases(const struct vg_probe *probe, int64_t end, uint64_t recorded)
{
	uint32_t known = probe->seen.journey_count < vg_most_journeys ? probe->seen.journey_count : vg_most_journeys;
	int64_t after = (int64_t)(recorded - probe->base_sent);
	uint32_t with = 0;

	for (uint32_t i = 0; i < known; i++) {
		const struct vg_journey *journey = &probe->seen.journeys[i];
		int64_t late = journey->back - end;

		with += journey->sent > after && late > -vg_alias_ns && late < vg_alias_ns;
	}
	return with >= vg_alias_least;
}

// vg_fit_clock compares the least delay of a complete window with the least delay of the first
// window since the base event. vg_fit_clock returns the drift in parts per billion, or 0 if the
// drift is unknown.
static int32_t vg_fit_clock(struct vg_fit *fit, const struct vg_probe *probe)
{
	int64_t over = probe->seen.window - fit->window;
	int64_t ppb;

	fit->window = probe->seen.window;
	if (over <= 0 || over > vg_fit_gap_ns)
		return 0;
	if (!fit->begun) {
		fit->begun = true;
		fit->at = probe->seen.window;
		fit->delay = probe->seen.before;
		return 0;
	}
	if (probe->seen.window - fit->at < vg_fit_least_ns)
		return 0;
	ppb = (probe->seen.before - fit->delay) * 1000 / ((probe->seen.window - fit->at) / 1000000);
	if (ppb > vg_drift_most_ppb || ppb < -vg_drift_most_ppb)
		return 0;
	return ppb ? (int32_t)ppb : 1; // 0 means unknown
}

static uint32_t vg_median(int64_t *values, uint32_t count)
{
	for (uint32_t i = 1; i < count; i++)
		for (uint32_t k = i; k > 0 && values[k - 1] > values[k]; k--) {
			int64_t value = values[k];

			values[k] = values[k - 1];
			values[k - 1] = value;
		}
	return (uint32_t)vg_min((uint64_t)values[count / 2], UINT32_MAX);
}

// vg_fit_turns collects the times between two stretches of other containers' time. vg_fit_turns
// returns the median in ns, or 0 without enough times. Probes do not show turns that are shorter
// than the interval of the probes. vg_fit_turns skips these turns.
static uint32_t vg_fit_turns(struct vg_fit *fit, const struct vg_probe *probe)
{
	uint32_t turn = 0;

	if (probe->seen.count - fit->seen > vg_most_stretches)
		fit->seen = probe->seen.count - vg_most_stretches;
	for (; fit->seen != probe->seen.count; fit->seen++) {
		const struct vg_stretch *one = &probe->seen.others[fit->seen % vg_most_stretches];
		const struct vg_stretch *before = &probe->seen.others[(fit->seen + vg_most_stretches - 1) % vg_most_stretches];

		if (fit->seen == 0 || before->to < probe->seen.since || one->from - before->to < vg_probe_ns)
			continue;
		fit->turns[fit->turn_count++] = one->from - before->to;
		if (fit->turn_count == vg_turns) {
			turn = vg_median(fit->turns, vg_turns);
			fit->turn_count = 0;
		}
	}
	return turn;
}

bool vg_fit_follow(struct vg_fit *fit, const struct vg_probe *probe, int32_t *ppb, uint32_t *turn)
{
	*ppb = 0;
	*turn = 0;
	if (!probe->base_sent || !probe->seen.offset_known)
		return false;
	if (fit->base != probe->base_sent)
		*fit = (struct vg_fit){.base = probe->base_sent, .window = probe->seen.window};
	if (fit->journeys == probe->seen.journey_count)
		return false;
	fit->journeys = probe->seen.journey_count;
	*ppb = vg_fit_clock(fit, probe);
	*turn = vg_fit_turns(fit, probe);
	return *ppb || *turn;
}
