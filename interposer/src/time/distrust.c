// SPDX-License-Identifier: Apache-2.0

#include "distrust.h"

#include "meter.h"
#include "pages.h"

enum {
	vg_fit_least_ns = 1000000000,  // between two windows from which the drift is told
	vg_fit_gap_ns = 100000000,     // more between two windows: the later is not a whole one
	vg_drift_most_ppb = 1000000,   // more is no clock
	vg_alias_ns = 30000,           // between the end of work and of a probe that waited for it
	vg_alias_least = 2,            // one probe may have been sent just before the end
};

static struct vg_distrust *vg_distrust_of(const struct vg_meter *meter)
{
	return &meter->pages->usage->header.distrust[meter->device];
}

void vg_distrust_lapsed(const struct vg_meter *meter, int64_t ns)
{
	if (ns > 0)
		__atomic_fetch_add(&vg_distrust_of(meter)->uncharged, 1, __ATOMIC_RELAXED);
}

bool vg_probe_aliases(const struct vg_probe *probe, int64_t end, uint64_t recorded)
{
	uint32_t known = probe->journey_count < vg_journeys ? probe->journey_count : vg_journeys;
	int64_t after = (int64_t)(recorded - probe->base_sent);
	uint32_t with = 0;

	for (uint32_t i = 0; i < known; i++) {
		const struct vg_journey *journey = &probe->journeys[i];
		int64_t late = journey->back - end;

		with += journey->sent > after && late > -vg_alias_ns && late < vg_alias_ns;
	}
	return with >= vg_alias_least;
}

void vg_distrust_unpassed(const struct vg_meter *meter, CUevent end, uint64_t recorded)
{
	float ms = 0;

	if (!meter->probe.base || VG_CALL(cuEventElapsedTime, &ms, meter->probe.base, end))
		return;
	if (vg_probe_aliases(&meter->probe, (int64_t)((double)ms * 1e6), recorded))
		__atomic_fetch_add(&vg_distrust_of(meter)->aliased, 1, __ATOMIC_RELAXED);
}

// vg_fit_clock compares the least delay of a window that is over with that of the first one
// since the base event.
static int32_t vg_fit_clock(struct vg_fit *fit, const struct vg_probe *probe)
{
	int64_t over = probe->window - fit->window;
	int64_t ppb;

	fit->window = probe->window;
	if (over <= 0 || over > vg_fit_gap_ns)
		return 0;
	if (!fit->begun) {
		fit->begun = true;
		fit->at = probe->window;
		fit->delay = probe->before;
		return 0;
	}
	if (probe->window - fit->at < vg_fit_least_ns)
		return 0;
	ppb = (probe->before - fit->delay) * 1000 / ((probe->window - fit->at) / 1000000);
	if (ppb > vg_drift_most_ppb || ppb < -vg_drift_most_ppb)
		return 0;
	return ppb ? (int32_t)ppb : 1; // 0 is unknown
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

// vg_fit_turns takes in what lies between two stretches of others' time. Probes cannot tell
// turns that are shorter than their distance: those are parts of one stretch.
static uint32_t vg_fit_turns(struct vg_fit *fit, const struct vg_probe *probe)
{
	uint32_t turn = 0;

	if (probe->count - fit->seen > vg_stretches)
		fit->seen = probe->count - vg_stretches;
	for (; fit->seen != probe->count; fit->seen++) {
		const struct vg_stretch *one = &probe->others[fit->seen % vg_stretches];
		const struct vg_stretch *before = &probe->others[(fit->seen + vg_stretches - 1) % vg_stretches];

		if (fit->seen == 0 || before->to < probe->since || one->from - before->to < vg_probe_ns)
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
	if (!probe->base_sent || !probe->offset_known)
		return false;
	if (fit->base != probe->base_sent)
		*fit = (struct vg_fit){.base = probe->base_sent, .window = probe->window};
	if (fit->journeys == probe->journey_count)
		return false;
	fit->journeys = probe->journey_count;
	*ppb = vg_fit_clock(fit, probe);
	*turn = vg_fit_turns(fit, probe);
	return *ppb || *turn;
}

void vg_distrust_follow(struct vg_meter *meter)
{
	int32_t ppb;
	uint32_t turn;

	if (!vg_fit_follow(&meter->fit, &meter->probe, &ppb, &turn))
		return;
	if (ppb)
		__atomic_store_n(&vg_distrust_of(meter)->drift_ppb, (uint32_t)ppb, __ATOMIC_RELAXED);
	if (turn)
		__atomic_store_n(&vg_distrust_of(meter)->slice_ns, turn, __ATOMIC_RELAXED);
}
