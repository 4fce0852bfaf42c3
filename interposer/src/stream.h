// SPDX-License-Identifier: Apache-2.0

// What the driver knows of a stream.

#ifndef VG_STREAM_H
#define VG_STREAM_H

#include <stdbool.h>

#include "capture.h"
#include "driver.h"

static CUstream const vg_legacy_stream = (CUstream)1;
static CUstream const vg_per_thread_stream = (CUstream)2;

// vg_stream_event makes an event in a stream's context, of which it must be.
CUresult vg_stream_event(CUevent *event, CUstream stream);

// vg_stream_device is the device that a stream belongs to.
CUresult vg_stream_device(CUstream stream, CUdevice *device);

// vg_stream_ask_capturing asks the driver whether a stream is being captured; stream 0 is the
// calling thread's own if `per_thread`. Of the legacy stream beside the capture of a stream
// that blocks, the driver says that it cannot be asked.
enum vg_capturing { vg_not_capturing, vg_is_capturing, vg_beside_capture, vg_capturing_unknown };
enum vg_capturing vg_stream_ask_capturing(CUstream stream, bool per_thread);

// vg_stream_capturing reports whether what is given to a stream now does not run: it is
// captured, or refused. The driver is asked, which costs a launch dear, only where there may
// be captures.
static inline bool vg_stream_capturing(CUstream stream, bool per_thread)
{
	enum vg_capturing now = vg_captures_maybe() ? vg_stream_ask_capturing(stream, per_thread) :
						      vg_not_capturing;

	return now == vg_is_capturing || now == vg_beside_capture;
}

#endif
