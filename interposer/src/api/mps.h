// SPDX-License-Identifier: Apache-2.0

// GPUs that are shared through NVIDIA's Multi-Process Service. The service's server limits a
// process to a part of the GPU by the process's environment, which the process can write. Therefore
// the environment is set right before CUDA starts, and the result is checked afterwards.

#ifndef VG_MPS_H
#define VG_MPS_H

#include <stdbool.h>
#include <stdint.h>

struct vg_error;
struct vg_pages;

// vg_mps_prepare sets the environment of a client, unless the environment asks for less.
void vg_mps_prepare(struct vg_pages *pages);

// vg_mps_check reports whether the started driver limits this process to its part of each GPU.
// `devices` is as in vg_state. On failure `error` describes the cause.
bool vg_mps_check(const struct vg_pages *pages, const uint32_t *devices, struct vg_error *error);

#endif
