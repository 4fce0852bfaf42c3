// SPDX-License-Identifier: Apache-2.0
/* What NVML says of the use of GPUs, as the timeline passes. */
#ifndef GPUSIM_SAMPLES_H
#define GPUSIM_SAMPLES_H

#include "state.h"

/* Adds a time to the windows of a ring that it lies in. */
void gs_sample_add(struct gs_sample *ring, uint32_t size, uint64_t from, uint64_t to);

/*
 * Adds a time in which a process had a sampled GPU. A driver that looks at the end of each
 * period names the process that has the GPU then, with all that the GPU did in the period.
 */
void gs_sample_period(struct gs_gpu *gpu, struct gs_proc_gpu *named, uint64_t from, uint64_t to);

#endif
