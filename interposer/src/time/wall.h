// SPDX-License-Identifier: Apache-2.0

// This header covers streams in which events cannot be recorded or read. The work of these streams
// is charged by wall time.
//
// Work on these streams is charged by estimate when it is launched, like any other work. From the
// first launch until all work is done, the streams count as occupying the GPU. When the streams are
// done, the difference between that time and the charge is settled. Before the settlement, the
// difference counts against the balance of this process. Launches wait for the balance no longer
// than for any call of the driver, because the work may never end.

#ifndef VG_WALL_H
#define VG_WALL_H

#include "meter.h"

// vg_wall_blind drops the events of a stream. Later work of the stream is charged by wall time.
enum { vg_most_failures = 3 };
void vg_wall_blind(struct vg_meter *meter, struct vg_stream *stream);

// vg_wall_enter enters work that is about to be launched on a stream without events. vg_wall_failed
// removes a launch that failed. vg_wall_look checks whether the work of these streams is done, in a
// thread with this context.
void vg_wall_enter(struct vg_meter *meter, struct vg_stream *stream, const struct vg_class *class,
		   int64_t charge, uint64_t now);
void vg_wall_failed(struct vg_meter *meter, int64_t charge);
void vg_wall_look(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_wall_wait returns the time until the next check of streams without events, in ns. The check is
// a little earlier than the expected end of the work. Only an early check shows that an estimate is
// too high. For late work, vg_wall_wait returns UINT64_MAX.
uint64_t vg_wall_wait(const struct vg_meter *meter, uint64_t now);

#endif
