// SPDX-License-Identifier: Apache-2.0

// This header covers captures of streams, and the interposer's calls that captures forbid.
//
// The interposer must not touch a stream under capture: an event would become part of the capture,
// and a query would invalidate the capture. During the capture of a blocking stream, the interposer
// must not touch the legacy stream either. Therefore vg_capture_touch_begin and
// vg_capture_touch_end enclose every call of the interposer that touches a stream of the program.
// The beginning of a capture waits for the touches in progress. No touch begins until the capture
// has begun.
//
// The interposer makes all other calls that a capture may forbid in the thread's relaxed mode.

#ifndef VG_CAPTURE_H
#define VG_CAPTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"
#include "load/capture_count.h"

// vg_capture_ask asks the driver whether a stream is being captured. With `per_thread`, stream 0 is
// the calling thread's own stream. During the capture of a blocking stream, the driver returns an
// error for the legacy stream: the result is vg_beside_capture.
enum vg_capturing { vg_not_capturing, vg_is_capturing, vg_beside_capture, vg_capturing_unknown };
enum vg_capturing vg_capture_ask(CUstream stream, bool per_thread);

// vg_capture_is_on reports whether the driver captures or refuses work for a stream instead of
// running the work. vg_capture_is_on queries the driver only while captures may be open, because
// the query is expensive for a launch.
static inline bool vg_capture_is_on(CUstream stream, bool per_thread)
{
	enum vg_capturing now = vg_capture_count_maybe() ?
					vg_capture_ask(stream, per_thread) : vg_not_capturing;

	return now == vg_is_capturing || now == vg_beside_capture;
}

// vg_capture_id returns the number of the capture of a stream, or 0 if the number is unknown.
uint64_t vg_capture_id(CUstream stream, bool per_thread);

// vg_capture_prepare must be called before the driver begins a capture. vg_capture_begun must be
// called with the driver's result, and returns that result.
void vg_capture_prepare(void);
CUresult vg_capture_begun(CUstream stream, CUresult result);

// vg_capture_join_begin and vg_capture_join_end enclose a call by which a stream may join a
// capture. During that call the interposer touches no stream.
void vg_capture_join_begin(void);
void vg_capture_join_end(void);

// vg_capture_ended must be called after the driver's call that ends a capture, and returns the
// driver's result.
CUresult vg_capture_ended(CUstream stream, bool per_thread, CUresult result);

// vg_capture_forget must be called before a stream is destroyed. vg_capture_forget removes the
// stream's captures and returns their number. vg_capture_remember restores the captures if the
// driver refuses to destroy the stream.
unsigned vg_capture_forget(CUstream stream);
void vg_capture_remember(CUstream stream, unsigned count);

// vg_capture_touch_begin reports whether the interposer may touch a stream. After a true result,
// vg_capture_touch_end must follow soon.
bool vg_capture_touch_begin(CUstream stream, bool per_thread);
void vg_capture_touch_end(void);

// vg_capture_relax allows the calling thread to make calls that captures forbid. vg_capture_relax
// returns the former mode, which vg_capture_unrelax restores, or -1 if the mode has not changed.
int vg_capture_relax(void);
void vg_capture_unrelax(int mode);

#endif
