// SPDX-License-Identifier: Apache-2.0

// This header covers captures of streams, and the interposer's calls that captures forbid.
//
// The interposer must not touch a stream under capture: an event would become part of the capture,
// and a query would invalidate it. The same holds for the legacy stream during the capture of a
// blocking stream. Therefore every call of ours that touches a stream of the program lies between
// vg_capture_touch_begin and vg_capture_touch_end. A capture that begins waits for the touches
// under way, and no touch begins until it has begun.
//
// Other calls of ours that a capture may forbid are made in the thread's relaxed mode.

#ifndef VG_CAPTURE_H
#define VG_CAPTURE_H

#include <stdbool.h>

#include "driver.h"
#include "load/capture_count.h"

// vg_capture_ask asks the driver whether a stream is being captured. Stream 0 is the calling
// thread's own if `per_thread`. For the legacy stream during the capture of a blocking stream, the
// driver reports that the stream cannot be queried.
enum vg_capturing { vg_not_capturing, vg_is_capturing, vg_beside_capture, vg_capturing_unknown };
enum vg_capturing vg_capture_ask(CUstream stream, bool per_thread);

// vg_capture_is_on reports whether work for a stream does not run now, because it is captured or
// refused. vg_capture_is_on asks the driver, which is expensive for a launch, only if there may be
// captures.
static inline bool vg_capture_is_on(CUstream stream, bool per_thread)
{
	enum vg_capturing now = vg_capture_count_maybe() ?
					vg_capture_ask(stream, per_thread) : vg_not_capturing;

	return now == vg_is_capturing || now == vg_beside_capture;
}

// vg_capture_prepare is called before the driver begins a capture. vg_capture_begun is called with
// the driver's result, and returns that result.
void vg_capture_prepare(void);
CUresult vg_capture_begun(CUstream stream, CUresult result);

// vg_capture_join_begin and vg_capture_join_end enclose a call by which a stream may join a
// capture. Meanwhile the interposer touches no stream.
void vg_capture_join_begin(void);
void vg_capture_join_end(void);

// vg_capture_ended is called after the driver was asked to end a capture, and returns the driver's
// result.
CUresult vg_capture_ended(CUstream stream, bool per_thread, CUresult result);

// vg_capture_forget is called before a stream is destroyed. vg_capture_forget returns how many
// captures it has forgotten. vg_capture_remember restores the captures if the driver refuses.
unsigned vg_capture_forget(CUstream stream);
void vg_capture_remember(CUstream stream, unsigned count);

// vg_capture_touch_begin reports whether the interposer may touch a stream. If so,
// vg_capture_touch_end must follow soon.
bool vg_capture_touch_begin(CUstream stream, bool per_thread);
void vg_capture_touch_end(void);

// vg_capture_relax allows the calling thread to make calls that captures forbid. vg_capture_relax
// returns the former mode, which vg_capture_unrelax restores; -1: nothing was changed.
int vg_capture_relax(void);
void vg_capture_unrelax(int mode);

#endif
