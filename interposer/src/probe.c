// SPDX-License-Identifier: Apache-2.0

#include "probe.h"

#include <string.h>

enum {
	vg_late_ns = 60000,       // later than the least delay: the GPU was not ours
	vg_gap_ns = 2000000,      // without a probe: nothing is known
	vg_stream_non_blocking = 1,
};

// How long times are told from one base event: see meter.c.
static const uint64_t vg_base_life = 4000000000;

static const struct vg_stretch *vg_stretch_last(const struct vg_probe *probe)
{
	return probe->count ? &probe->others[(probe->count - 1) % vg_stretches] : NULL;
}

// vg_stretch_begin is when the GPU went to another, seen from a late probe: on
// average in the middle between it and the last one that was not late.
static int64_t vg_stretch_begin(const struct vg_probe *probe, int64_t sent)
{
	if (sent - probe->held > vg_gap_ns)
		return sent;
	return probe->held + (sent - probe->held) / 2;
}

void vg_probe_note(struct vg_probe *probe, int64_t sent, int64_t back)
{
	const struct vg_stretch *last = vg_stretch_last(probe);
	struct vg_stretch stretch;

	if (!probe->offset_known || back - sent < probe->offset)
		probe->offset = back - sent;
	probe->offset_known = true;
	if (sent + probe->offset - probe->until > vg_gap_ns)
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

void vg_probe_drop(struct vg_probe *probe)
{
	memset(probe, 0, sizeof *probe);
}

// ---- the driver's part; the caller has relaxed the capture mode

static bool vg_probe_prepare(struct vg_probe *probe, uint64_t context, uint64_t now)
{
	if (probe->context && probe->context != context)
		return false; // of several contexts, one is probed
	if (probe->base && now - probe->base_sent < vg_base_life)
		return true;
	if (probe->head != probe->tail)
		return false; // those under way are of the base before
	if (!probe->stream && VG_CALL(cuStreamCreate, &probe->stream, vg_stream_non_blocking))
		return false;
	probe->context = context;
	if (!probe->base && VG_CALL(cuEventCreate, &probe->base, 0))
		return false;
	probe->base_sent = now;
	probe->offset_known = false;
	probe->count = 0;
	probe->held = probe->since = probe->until = INT64_MIN / 2;
	return VG_CALL(cuEventRecord, probe->base, probe->stream) == CUDA_SUCCESS;
}

void vg_probe_send(struct vg_probe *probe, uint64_t context, uint64_t now)
{
	uint32_t at = probe->head % vg_probes;
	CUcontext current = NULL;

	if (VG_CALL(cuCtxGetCurrent, &current) || (uint64_t)(uintptr_t)current != context)
		return;
	if (!vg_probe_prepare(probe, context, now) || probe->head - probe->tail == vg_probes)
		return;
	if (!probe->events[at] && VG_CALL(cuEventCreate, &probe->events[at], 0))
		return;
	if (VG_CALL(cuEventRecord, probe->events[at], probe->stream))
		return;
	probe->sent[at] = now;
	probe->head++;
}

static bool vg_probe_elapsed(const struct vg_probe *probe, CUevent event, int64_t *ns)
{
	float ms = 0;

	if (!probe->base || VG_CALL(cuEventElapsedTime, &ms, probe->base, event))
		return false;
	*ns = (int64_t)((double)ms * 1e6);
	return true;
}

void vg_probe_harvest(struct vg_probe *probe)
{
	while (probe->tail != probe->head) {
		uint32_t at = probe->tail % vg_probes;
		int64_t back;

		if (VG_CALL(cuEventQuery, probe->events[at]) == CUDA_ERROR_NOT_READY)
			return;
		if (vg_probe_elapsed(probe, probe->events[at], &back))
			vg_probe_note(probe, (int64_t)(probe->sent[at] - probe->base_sent), back);
		probe->tail++;
	}
}

int64_t vg_probe_others(const struct vg_probe *probe, CUevent end, int64_t interval)
{
	int64_t to;

	if (!probe->base || !vg_probe_elapsed(probe, end, &to))
		return -1;
	if (probe->since > to - interval + vg_gap_ns || probe->until < to - vg_gap_ns)
		return -1;
	return vg_probe_overlap(probe, (struct vg_stretch){to - interval, to});
}
