// SPDX-License-Identifier: Apache-2.0

#ifndef VG_CU_PRIMARY_H
#define VG_CU_PRIMARY_H

#include "driver/driver.h"

CUresult vg_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult vg_cuDevicePrimaryCtxRelease_v2(CUdevice device);

#endif
