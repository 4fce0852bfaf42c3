// SPDX-License-Identifier: Apache-2.0

// This header covers idle streams: their work counts as done without an event.

#ifndef VG_IDLE_H
#define VG_IDLE_H

#include "meter.h"

// vg_idle_drain queries the driver whether a stream that should be idle is idle. The unmeasured
// work of an idle stream counts as done without an event.
void vg_idle_drain(struct vg_meter *meter, struct vg_stream *stream, uint64_t now, bool per_thread);

// vg_idle_waited records that a program has waited for a stream, in a thread with this context.
// vg_idle_context_waited records that it has waited for a context. Nothing runs there any more.
void vg_idle_waited(struct vg_meter *meter, CUstream handle, uint64_t context, uint64_t thread,
		    uint64_t now);
void vg_idle_context_waited(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_idle_other_waited records that a program has waited for other work, in a thread with this
// context. vg_idle_other_waited queries the driver about the streams of the context that should be
// idle.
void vg_idle_other_waited(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now);

// vg_idle_context_done reports whether no work is under way in this thread's context.
bool vg_idle_context_done(const struct vg_meter *meter, uint64_t context, uint64_t thread);

#endif
