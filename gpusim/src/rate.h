// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers the speed of kernels. A power limit raises and lowers the SMs' clock, and
 * kernels that run side by side slow each other down. Rates are in ppm of the speed at which a
 * kernel takes its nominal length.
 */
#ifndef GPUSIM_RATE_H
#define GPUSIM_RATE_H

#include "state.h"

#define GS_RATE_FULL UINT64_C(1000000)

/* gs_rate returns the rate of each kernel when `running` kernels run at this time. */
uint64_t gs_rate(const struct gs_gpu *gpu, uint64_t at, uint32_t running);

/* gs_rate_change returns the time of the next change of the clock after this time. */
uint64_t gs_rate_change(const struct gs_gpu *gpu, uint64_t at);

/* gs_rate_time returns the duration of this work at a rate, and gs_rate_work returns the work done
 * in a duration. */
uint64_t gs_rate_time(uint64_t work_ns, uint64_t rate);
uint64_t gs_rate_work(uint64_t time_ns, uint64_t rate);

/* gs_rate_least returns the least time that the work can take. */
uint64_t gs_rate_least(const struct gs_gpu *gpu, uint64_t work_ns);

#endif
