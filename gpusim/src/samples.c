// SPDX-License-Identifier: Apache-2.0
#include "samples.h"

void gs_sample_add(struct gs_sample *ring, uint32_t size, uint64_t from, uint64_t to)
{
	uint64_t span = (uint64_t)size * GS_SAMPLE_NS;

	if (to - from > span)
		from = to - span;
	while (from < to) {
		uint64_t window = from / GS_SAMPLE_NS;
		uint64_t end = (window + 1) * GS_SAMPLE_NS;
		struct gs_sample *sample = &ring[window % size];

		if (end > to)
			end = to;
		if (sample->window != window)
			*sample = (struct gs_sample){window, 0};
		sample->busy_ns += end - from;
		from = end;
	}
}

void gs_sample_period(struct gs_gpu *gpu, struct gs_proc_gpu *named, uint64_t from, uint64_t to)
{
	while (from < to) {
		uint64_t window = from / GS_PERIOD_NS;
		uint64_t end = (window + 1) * GS_PERIOD_NS;

		if (gpu->period.window != window)
			gpu->period = (struct gs_sample){window, 0};
		gpu->period.busy_ns += (end < to ? end : to) - from;
		if (end <= to)
			named->samples[window % GS_PROC_SAMPLES] = gpu->period;
		from = end;
	}
}
