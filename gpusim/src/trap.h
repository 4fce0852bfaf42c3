// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers kernels that end with an exception, such as an access to an illegal address.
 * The exception ends all work of the process on that GPU, and later calls return an error. Other
 * processes continue, except clients of the Multi-Process Service that share the GPU.
 */
#ifndef GPUSIM_TRAP_H
#define GPUSIM_TRAP_H

#include "state.h"

/* gs_trap ends the work of the process whose kernel has trapped on the GPU. The caller holds the
 * lock. */
void gs_trap(struct gs_state *state, uint32_t gpu, uint32_t slot);

#endif
