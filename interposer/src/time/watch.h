// SPDX-License-Identifier: Apache-2.0

// This header covers the watch over a thread that waits for the GPU. While the awaited work may be
// longer than a slice, the thread sends probes (probe.h).

#ifndef VG_WATCH_H
#define VG_WATCH_H

#include <stdbool.h>

#include "driver/driver.h"

// These functions return when the work that they wait for is done, or at once if there is nothing
// to watch. The caller must ask the driver in any case. vg_watch_event reports whether it delayed
// that call: a capture that forbids the call may have begun meanwhile.
void vg_watch_stream(CUstream stream, bool per_thread);
bool vg_watch_event(CUevent event);
void vg_watch_context(CUcontext context); // NULL: the current context

// vg_watch_polled records that a program has asked whether work is done, and it is not. A program
// that polls instead of waiting sends its probes in this function.
void vg_watch_polled(void);

// These functions record that a program has waited: the stream or context is idle.
void vg_watch_stream_waited(CUstream stream, bool per_thread);
void vg_watch_context_waited(CUcontext context);

// vg_watch_other_waited records that a program has waited for other work, such as an event or a
// copy. vg_watch_other_waited queries the driver which streams of the context are idle.
void vg_watch_other_waited(void);

#endif
