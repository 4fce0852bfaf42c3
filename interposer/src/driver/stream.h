// SPDX-License-Identifier: Apache-2.0

// This header covers the driver's information about a stream.

#ifndef VG_STREAM_H
#define VG_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

// vg_stream_event creates an event in a context, because an event must belong to the context of the
// stream in which it is recorded. Without a context (0), the event belongs to the current context.
CUresult vg_stream_event(CUevent *event, uint64_t context, unsigned flags);

// vg_stream_record records an event in a stream.
CUresult vg_stream_record(CUevent event, CUstream stream, bool per_thread);

// vg_stream_event_done reports whether an event is not pending. An event whose query fails counts as
// done.
bool vg_stream_event_done(CUevent event);

// vg_stream_elapsed sets `ns` to the time between two events, and reports whether the driver returned
// the time.
bool vg_stream_elapsed(CUevent from, CUevent to, int64_t *ns);

// vg_stream_device sets `device` to the device of a stream.
CUresult vg_stream_device(CUstream stream, CUdevice *device);

// vg_stream_broke reports whether a result is the error of an exception in a kernel. The exception
// has ended all work of the context.
bool vg_stream_broke(CUresult result);

// vg_stream_ask asks the driver whether work is left on a stream. The answer is vg_work_unknown if
// the interposer must not touch the stream, and vg_work_failed if the driver returns an error. After
// an exception in a kernel, no work is left.
enum vg_work_left { vg_work_none, vg_work_left, vg_work_unknown, vg_work_failed };
enum vg_work_left vg_stream_ask(CUstream stream, bool per_thread);

// vg_stream_ended reports whether a stream with this answer surely has no work left. A stream whose
// queries fail, although events can be recorded, does no more work. vg_stream_is_done first calls
// vg_stream_ask.
bool vg_stream_ended(enum vg_work_left left);
bool vg_stream_is_done(CUstream stream, bool per_thread);

#endif
