// SPDX-License-Identifier: Apache-2.0
/* This header covers submissions for events, host functions and graphs only. */
#ifndef GPUSIM_QUEUE_H
#define GPUSIM_QUEUE_H

#include "sim.h"

CUresult sim_submit_event(struct sim_stream *stream, struct sim_event *event);
CUresult sim_submit_wait(struct sim_stream *stream, struct sim_event *event);

/* sim_submit_join continues the stream when these items have ended. The caller holds the queue
 * lock. */
CUresult sim_submit_join(struct sim_stream *stream, const struct gs_ref *deps, size_t count,
			 struct gs_ref *ref);

/* These functions queue an event's record or wait as part of a graph. The caller holds the queue
 * lock. */
CUresult sim_submit_event_after(struct sim_device *device, struct sim_event *event,
				const struct gs_ref *deps, size_t count, struct gs_ref *ref);
CUresult sim_submit_wait_after(struct sim_device *device, struct sim_event *event,
			       const struct gs_ref *deps, size_t count, struct gs_ref *ref);

/* sim_stream_end returns the stream's present end. The caller holds the queue lock. */
struct gs_ref sim_stream_end(struct sim_stream *stream);

/* sim_event_release frees an event without references. */
void sim_event_release(struct sim_event *event);

#endif
