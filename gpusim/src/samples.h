// SPDX-License-Identifier: Apache-2.0
/* This header covers the utilisation samples that NVML reports, recorded as the timeline
 * advances. */
#ifndef GPUSIM_SAMPLES_H
#define GPUSIM_SAMPLES_H

#include "state.h"

/* gs_sample_add adds a time span to the windows of a ring that the span overlaps. */
void gs_sample_add(struct gs_sample *ring, uint32_t size, uint64_t from, uint64_t to);

/*
 * gs_sample_period adds a time span in which a process had a sampled GPU. A sampling driver takes a
 * sample at the end of each period. The driver attributes all of the GPU's time in the period to
 * the process that then has the GPU.
 */
void gs_sample_period(struct gs_gpu *gpu, struct gs_proc_gpu *named, uint64_t from, uint64_t to);

#endif
