// SPDX-License-Identifier: Apache-2.0
#include "rate.h"

uint64_t gs_rate(const struct gs_gpu *gpu, uint64_t at, uint32_t running)
{
	bool slow = at / (gpu->power_period_ns / 2) % 2;
	uint64_t rate = slow ? GS_RATE_FULL - gpu->power_ppm : GS_RATE_FULL + gpu->power_ppm;

	if (running > 1)
		rate = rate * GS_RATE_FULL / (GS_RATE_FULL + (running - 1) * (uint64_t)gpu->crowding_ppm);
	return rate ? rate : 1;
}

uint64_t gs_rate_change(const struct gs_gpu *gpu, uint64_t at)
{
	uint64_t half = gpu->power_period_ns / 2;

	return gpu->power_ppm ? (at / half + 1) * half : UINT64_MAX;
}

/* scale returns a × b ÷ c. The product may exceed 64 bits. */
static uint64_t scale(uint64_t a, uint64_t b, uint64_t c, uint64_t round)
{
	return (uint64_t)(((unsigned __int128)a * b + round) / c);
}

uint64_t gs_rate_time(uint64_t work_ns, uint64_t rate)
{
	return rate == GS_RATE_FULL ? work_ns : scale(work_ns, GS_RATE_FULL, rate, rate - 1);
}

uint64_t gs_rate_work(uint64_t time_ns, uint64_t rate)
{
	return rate == GS_RATE_FULL ? time_ns : scale(time_ns, rate, GS_RATE_FULL, 0);
}

uint64_t gs_rate_least(const struct gs_gpu *gpu, uint64_t work_ns)
{
	return gs_rate_time(work_ns, GS_RATE_FULL + gpu->power_ppm);
}
