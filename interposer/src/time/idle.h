// SPDX-License-Identifier: Apache-2.0

// This header covers idle streams, whose work counts as done without an event.

#ifndef VG_IDLE_H
#define VG_IDLE_H

#include "meter.h"

// vg_idle_blind asks the driver which blind streams have work, in a thread with this context.
// vg_idle_blind ends the work of idle streams, and reports whether a blind stream has work. If the
// driver does not report a stream's state, the stream counts as busy for a second beyond its estimate.
bool vg_idle_blind(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_idle_drain asks the driver whether a stream is idle whose work should be done. The unmeasured
// work of an idle stream counts as done without an event.
void vg_idle_drain(struct vg_meter *meter, struct vg_stream *stream, uint64_t now, bool per_thread);

// vg_idle_waited records that a program has waited for a stream, in a thread with this context.
// vg_idle_context_waited records that a program has waited for a context. The awaited stream or
// context has no more work.
void vg_idle_waited(struct vg_meter *meter, CUstream handle, uint64_t context, uint64_t thread,
		    uint64_t now);
void vg_idle_context_waited(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_idle_other_waited records that a program has waited for other work, in a thread with this
// context. vg_idle_other_waited queries the driver about the streams of the context that should be
// idle.
void vg_idle_other_waited(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now);

// vg_idle_context_done reports whether the streams of this thread's context have no more work.
bool vg_idle_context_done(const struct vg_meter *meter, uint64_t context, uint64_t thread);

#endif
