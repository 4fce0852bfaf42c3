// SPDX-License-Identifier: Apache-2.0
/*
 * How fast kernels run: the SMs' clock goes up and down under a power limit, and
 * kernels that run side by side slow each other down. Rates are parts of a million
 * of what a kernel's length is counted in.
 */
#ifndef GPUSIM_RATE_H
#define GPUSIM_RATE_H

#include "state.h"

#define GS_RATE_FULL UINT64_C(1000000)

/* The rate of each of so many kernels that run at this time. */
uint64_t gs_rate(const struct gs_gpu *gpu, uint64_t at, uint32_t running);

/* When the clock next changes after this time. */
uint64_t gs_rate_change(const struct gs_gpu *gpu, uint64_t at);

/* The time in which this work ends at a rate, and the work that is done in a time. */
uint64_t gs_rate_time(uint64_t work_ns, uint64_t rate);
uint64_t gs_rate_work(uint64_t time_ns, uint64_t rate);

/* The least time that the work can take. */
uint64_t gs_rate_least(const struct gs_gpu *gpu, uint64_t work_ns);

#endif
