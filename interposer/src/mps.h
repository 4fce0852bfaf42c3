// SPDX-License-Identifier: Apache-2.0

// GPUs that are shared through NVIDIA's Multi-Process Service: its server holds a
// process to a part of the GPU by what stands in the process's environment, which
// the process can write. So it is set right before CUDA starts, and looked at
// what came of it.

#ifndef VG_MPS_H
#define VG_MPS_H

#include "state.h"

// vg_mps_prepare sets the environment of a client, where it isn't narrower.
void vg_mps_prepare(struct vg_pages *pages);

// vg_mps_check reports whether the driver, once started, holds this process to its part of
// each GPU. `devices` is as in vg_state. On failure it describes the cause in `error`.
bool vg_mps_check(const struct vg_pages *pages, const uint32_t *devices, struct vg_error *error);

#endif
