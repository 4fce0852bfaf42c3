// SPDX-License-Identifier: Apache-2.0

// What the kinds of contexts have in common.

#ifndef VG_CONTEXT_H
#define VG_CONTEXT_H

#include "claim.h"

// vg_context_estimate is what a context on this device is charged with.
uint64_t vg_context_estimate(CUdevice device);

CUresult vg_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult vg_cuDevicePrimaryCtxRelease_v2(CUdevice device);

#endif
