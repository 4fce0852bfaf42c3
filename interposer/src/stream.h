// SPDX-License-Identifier: Apache-2.0

// What the driver knows of a stream.

#ifndef VG_STREAM_H
#define VG_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver.h"

static CUstream const vg_legacy_stream = (CUstream)1;
static CUstream const vg_per_thread_stream = (CUstream)2;

// vg_stream_device is the device that a stream belongs to.
CUresult vg_stream_device(CUstream stream, CUdevice *device);

// vg_capture_begins is called before a stream is captured, or where one might be by a
// function that is not known here.
void vg_capture_begins(void);

// vg_stream_capturing says whether a stream is being captured; stream 0 is the
// calling thread's own if `per_thread`. The driver is asked, which costs a launch dear,
// only where vg_captures says that there may be captures.
extern _Atomic bool vg_captures;
bool vg_stream_ask_capturing(CUstream stream, bool per_thread);

static inline bool vg_stream_capturing(CUstream stream, bool per_thread)
{
	return atomic_load_explicit(&vg_captures, memory_order_relaxed) &&
	       vg_stream_ask_capturing(stream, per_thread);
}

#endif
