// SPDX-License-Identifier: Apache-2.0

// This header covers segments of streams: where to place events. events.c reads the events, meter.c
// keeps the streams.

#ifndef VG_SEGMENT_H
#define VG_SEGMENT_H

#include "meter.h"

// vg_segment_before enters work that is about to be launched into its stream's segment.
// vg_segment_before reports whether to call vg_segment_after when the launch is over.
bool vg_segment_before(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class,
		       int64_t charge, uint64_t now, bool per_thread);
void vg_segment_after(struct vg_meter *meter, struct vg_stream *stream, bool per_thread, bool failed);

// vg_segment_room returns how much more work of this class, in ns, may be entered into the same
// segment without an event or a close.
int64_t vg_segment_room(const struct vg_stream *stream, const struct vg_class *class);

// vg_segment_close closes the open segment of a stream with an event, and reports whether it could.
bool vg_segment_close(struct vg_stream *stream, bool per_thread);

// vg_segment_close_all does the same for all streams in which the thread may record events: those
// of the current context, except other threads' default streams.
void vg_segment_close_all(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now);

#endif
