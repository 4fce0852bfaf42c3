// SPDX-License-Identifier: Apache-2.0

// This header covers segments of streams, and the places of events. events.c reads the events, and
// meter.c manages the streams.

#ifndef VG_SEGMENT_H
#define VG_SEGMENT_H

#include "meter.h"

// vg_segment_before enters work that is about to be launched into its stream's segment.
// vg_segment_before reports whether to call vg_segment_after after the launch.
bool vg_segment_before(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class,
		       int64_t charge, uint64_t now, bool per_thread);
void vg_segment_after(struct vg_meter *meter, struct vg_stream *stream, bool per_thread);

// vg_segment_late enters work that a stream has had since `at`. The work is charged all time since `at`.
void vg_segment_late(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class, uint64_t at,
		     bool per_thread);

// vg_segment_failed removes a launch that failed from the segment with this number, and refunds the
// charge. `covered` is the segment's `covered` after vg_segment_before. vg_segment_failed refunds
// nothing for a segment that is done, because the measurement has refunded the charge.
void vg_segment_failed(struct vg_meter *meter, struct vg_stream *stream, uint32_t number, int64_t charge,
		       bool covered);

// vg_segment_room returns the amount of work of this class, in ns, that the segment can still take
// without an event or a close.
int64_t vg_segment_room(const struct vg_stream *stream, const struct vg_class *class);

// vg_segment_close closes the open segment of a stream with an event, and reports whether it closed
// the segment.
bool vg_segment_close(struct vg_stream *stream, bool per_thread);

// vg_segment_close_all closes the open segments of all streams in which the thread may record
// events. The thread may record events in the streams of the current context, except other threads'
// default streams.
void vg_segment_close_all(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now);

#endif
