// SPDX-License-Identifier: Apache-2.0

// What the driver knows of a stream.

#ifndef VG_STREAM_H
#define VG_STREAM_H

#include <stdbool.h>

#include "driver.h"

static CUstream const vg_legacy_stream = (CUstream)1;
static CUstream const vg_per_thread_stream = (CUstream)2;

// vg_stream_device is the device that a stream belongs to.
CUresult vg_stream_device(CUstream stream, CUdevice *device);

// vg_stream_capturing says whether a stream is being captured; stream 0 is the
// calling thread's own if `per_thread`.
bool vg_stream_capturing(CUstream stream, bool per_thread);

#endif
