// SPDX-License-Identifier: Apache-2.0

// A thread that waits for the GPU, watched over: while the work that it waits
// for may be longer than a slice, probes are sent from it (probe.h).

#ifndef VG_WATCH_H
#define VG_WATCH_H

#include <stdbool.h>

#include "driver.h"

// These return when what they wait for is done, or at once where there is
// nothing to watch. The driver is to be asked in any case. Of an event, vg_watch_event reports
// whether that comes later than the program asked: a capture may have begun meanwhile that
// forbids it, which it did not when the program asked.
void vg_watch_stream(CUstream stream, bool per_thread);
bool vg_watch_event(CUevent event);
void vg_watch_context(CUcontext context); // NULL: the current one

// vg_watch_polled is told that a program has asked whether work is done, and it is
// not: where it asks instead of waiting, probes are sent from there.
void vg_watch_polled(void);

// These are told that a program has waited: what it waited for is dry.
void vg_watched_stream(CUstream stream, bool per_thread);
void vg_watched_context(CUcontext context);

// vg_watched_other is told that a program has waited for something else, such as an event or a
// copy: the driver is asked which of its streams are dry.
void vg_watched_other(void);

#endif
