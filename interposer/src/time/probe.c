// SPDX-License-Identifier: Apache-2.0

#include "probe.h"

#include <string.h>

#include "base/now.h"
#include "base/number.h"
#include "driver/stream.h"

enum {
	vg_stream_non_blocking = 1,
	// vg_unknown_part is the fraction of an interval, at either end, that needs no probes. The
	// first probe may wait for other containers' slices, too.
	vg_unknown_part = 16,
};

void vg_probe_drop(struct vg_probe *probe)
{
	memset(probe, 0, sizeof *probe);
}

// The callers of the functions below must relax the capture mode.

static bool vg_probe_prepare(struct vg_probe *probe, uint64_t context, uint64_t now)
{
	if (probe->context && probe->context != context)
		return false; // only one context is probed
	if (probe->base && now - probe->base_sent < vg_base_life_ns)
		return true;
	if (probe->head != probe->tail)
		return false; // outstanding probes belong to the old base
	if (!probe->stream && VG_CALL(cuStreamCreate, &probe->stream, vg_stream_non_blocking))
		return false;
	probe->context = context;
	if (!probe->base && VG_CALL(cuEventCreate, &probe->base, 0))
		return false;
	probe->base_sent = now;
	vg_stretch_begin_anew(&probe->seen);
	return VG_CALL(cuEventRecord, probe->base, probe->stream) == CUDA_SUCCESS;
}

void vg_probe_send(struct vg_probe *probe, uint64_t context, uint64_t now)
{
	uint32_t at = probe->head % vg_probes;
	CUcontext current = NULL;
	uint64_t began;

	if (VG_CALL(cuCtxGetCurrent, &current) || (uint64_t)(uintptr_t)current != context)
		return;
	if (!vg_probe_prepare(probe, context, now) || probe->head - probe->tail == vg_probes)
		return;
	if (!probe->events[at] && VG_CALL(cuEventCreate, &probe->events[at], 0))
		return;
	began = vg_now();
	if (VG_CALL(cuEventRecord, probe->events[at], probe->stream))
		return;
	probe->sent[at] = vg_now() - began < vg_probe_slow_ns ? began : 0;
	probe->head++;
}

static bool vg_probe_elapsed(const struct vg_probe *probe, CUevent event, int64_t *ns)
{
	return probe->base && vg_stream_elapsed(probe->base, event, ns);
}

void vg_probe_read(struct vg_probe *probe)
{
	while (probe->tail != probe->head) {
		uint32_t at = probe->tail % vg_probes;
		int64_t back;

		if (VG_CALL(cuEventQuery, probe->events[at]) == CUDA_ERROR_NOT_READY)
			return;
		if (probe->sent[at] && vg_probe_elapsed(probe, probe->events[at], &back))
			vg_stretch_note(&probe->seen, (int64_t)(probe->sent[at] - probe->base_sent), back);
		probe->tail++;
	}
}

enum vg_pass vg_probe_pass(const struct vg_probe *probe, CUevent end, uint64_t recorded)
{
	int64_t to;

	if (!vg_probe_elapsed(probe, end, &to))
		return vg_pass_unknown;
	return vg_stretch_pass(&probe->seen, (int64_t)(recorded - probe->base_sent), to);
}

int64_t vg_probe_others(const struct vg_probe *probe, CUevent end, int64_t interval, bool *whole)
{
	int64_t gap = vg_most(interval / vg_unknown_part, vg_probe_gap_ns);
	int64_t to;

	*whole = false;
	if (!vg_probe_elapsed(probe, end, &to))
		return 0;
	*whole = probe->seen.since <= to - interval + gap && probe->seen.until >= to - gap;
	return vg_stretch_overlap(&probe->seen, (struct vg_stretch){to - interval, to});
}

int64_t vg_probe_own(const struct vg_probe *probe, CUevent end, int64_t interval)
{
	int64_t to;

	if (!vg_probe_elapsed(probe, end, &to))
		return 0;
	return vg_stretch_own(&probe->seen, (struct vg_stretch){to - interval, to});
}
