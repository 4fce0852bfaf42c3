// SPDX-License-Identifier: Apache-2.0

// This header covers threads that wait for the GPU. While the awaited work may be longer than a
// slice, the waiting thread sends probes (probe.h).

#ifndef VG_WATCH_H
#define VG_WATCH_H

#include <stdbool.h>

#include "driver/driver.h"

// vg_watch_stream, vg_watch_event and vg_watch_context return when the awaited work is done, or at
// once if the work is not long. The caller must call the driver in any case. vg_watch_event reports
// whether it delayed that call, because a capture that forbids the call may have begun meanwhile.
void vg_watch_stream(CUstream stream, bool per_thread);
bool vg_watch_event(CUevent event);
void vg_watch_context(CUcontext context); // NULL: the current context

// vg_watch_polled records that a program has polled for work that is not done. vg_watch_polled
// sends the probes of a program that polls.
void vg_watch_polled(void);

// vg_watch_stream_waited and vg_watch_context_waited record that a program has waited for a stream
// or a context, which is therefore idle.
void vg_watch_stream_waited(CUstream stream, bool per_thread);
void vg_watch_context_waited(CUcontext context);

// vg_watch_other_waited records that a program has waited for other work, such as an event or a
// copy. vg_watch_other_waited asks the driver which streams of the context are idle.
void vg_watch_other_waited(void);

#endif
