// SPDX-License-Identifier: Apache-2.0

// Captures of streams, and what they forbid us.
//
// A stream that is being captured must be left alone: an event of ours would become a part of
// the capture, and a query invalidates it. So does either on the legacy stream beside the
// capture of a stream that blocks. Therefore every call of ours that touches a stream of the
// program goes between vg_touch_begin and vg_touch_end. A capture that begins waits for the
// touches under way, and none begins until it has.
//
// Other calls of ours that a capture may forbid are made with the thread's mode relaxed.

#ifndef VG_CAPTURE_H
#define VG_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver.h"

// vg_captures counts the captures that may be open. It may be too high, never too low: where
// it is not 0, the driver is to be asked.
extern _Atomic unsigned vg_captures;

static inline bool vg_captures_maybe(void)
{
	return atomic_load_explicit(&vg_captures, memory_order_relaxed) != 0;
}

// vg_capture_expect_unknown counts a capture that ends unseen. It is called when a program looks
// up a function that this library does not know and that may begin or end captures.
void vg_capture_expect_unknown(void);

// vg_capture_prepare is called before the driver begins a capture, vg_capture_begun with its
// result, which it returns.
void vg_capture_prepare(void);
CUresult vg_capture_begun(CUstream stream, CUresult result);

// vg_capture_join_begin and vg_capture_join_end enclose a call by which a stream may join a
// capture: no touch of ours is under way on any stream meanwhile.
void vg_capture_join_begin(void);
void vg_capture_join_end(void);

// vg_capture_ended is called when the driver was told to end a capture; it returns the result.
CUresult vg_capture_ended(CUstream stream, bool per_thread, CUresult result);

// vg_capture_forget is called before a stream is destroyed, and returns how many captures
// are forgotten; vg_capture_remember takes that back where the driver refuses.
unsigned vg_capture_forget(CUstream stream);
void vg_capture_remember(CUstream stream, unsigned count);

// vg_touch_begin reports whether a stream may be touched now; if so, vg_touch_end must follow soon.
bool vg_touch_begin(CUstream stream, bool per_thread);
void vg_touch_end(void);

// vg_relax lets the calling thread do what captures forbid. It returns the mode that was,
// which vg_unrelax restores; -1: nothing was changed.
int vg_relax(void);
void vg_unrelax(int mode);

#endif
