// SPDX-License-Identifier: Apache-2.0

// This header covers GPUs that are shared through NVIDIA's Multi-Process Service. The service's
// server reads a process's part of the GPU from the process's environment, which the process can
// write. Therefore the interposer sets the environment right before CUDA starts, and checks the
// result afterwards.

#ifndef VG_MPS_H
#define VG_MPS_H

#include <stdbool.h>
#include <stdint.h>

struct vg_error;
struct vg_pages;

// vg_mps_prepare sets the environment of an MPS client. If the environment already states a smaller
// part, vg_mps_prepare keeps that part.
void vg_mps_prepare(struct vg_pages *pages);

// vg_mps_check reports whether the started driver limits this process to its part of each GPU.
// `devices` is as in vg_state. On failure `error` describes the cause.
bool vg_mps_check(const struct vg_pages *pages, const uint32_t *devices, struct vg_error *error);

#endif
