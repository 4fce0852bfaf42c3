// SPDX-License-Identifier: Apache-2.0

// What the driver knows of a stream.

#ifndef VG_STREAM_H
#define VG_STREAM_H

#include <stdbool.h>

#include "capture.h"
#include "driver.h"

static CUstream const vg_legacy_stream = (CUstream)1;
static CUstream const vg_per_thread_stream = (CUstream)2;

// vg_stream_device is the device that a stream belongs to.
CUresult vg_stream_device(CUstream stream, CUdevice *device);

// vg_stream_capturing reports whether a stream is being captured, or must be treated so as
// the driver does not say; stream 0 is the calling thread's own if `per_thread`. The driver is
// asked, which costs a launch dear, only where there may be captures.
bool vg_stream_ask_capturing(CUstream stream, bool per_thread);

static inline bool vg_stream_capturing(CUstream stream, bool per_thread)
{
	return vg_captures_maybe() && vg_stream_ask_capturing(stream, per_thread);
}

#endif
