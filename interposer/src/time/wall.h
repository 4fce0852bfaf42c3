// SPDX-License-Identifier: Apache-2.0

// This header covers streams in which events cannot be recorded or read: their work is charged by
// wall time.
//
// Work on these streams is charged by estimate when it is launched, like any other. From the first
// launch until all work is done, the streams count as holding the GPU. When the streams are done,
// the difference between that time and the charge is settled. Until then the difference counts
// against the balance of this process. Launches wait for it no longer than for any other call of
// the driver, because the work may never end.

#ifndef VG_WALL_H
#define VG_WALL_H

#include "meter.h"

// vg_wall_blind abandons events on a stream: its work is charged by wall time from then on.
enum { vg_most_failures = 3 };
void vg_wall_blind(struct vg_meter *meter, struct vg_stream *stream);

// vg_wall_enter enters work that is about to be launched on a stream without events. vg_wall_failed
// removes a launch that failed. vg_wall_look checks which of this work is done, in a thread with
// this context.
void vg_wall_enter(struct vg_meter *meter, struct vg_stream *stream, const struct vg_class *class,
		   int64_t charge, uint64_t now);
void vg_wall_failed(struct vg_meter *meter, int64_t charge);
void vg_wall_look(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_wall_wait returns how long to wait before the next check of such work, in ns. The result is a
// little less than the charge, because an estimate that is too high shows only if the check finds
// the work done earlier. For late work the result is UINT64_MAX.
uint64_t vg_wall_wait(const struct vg_meter *meter, uint64_t now);

#endif
