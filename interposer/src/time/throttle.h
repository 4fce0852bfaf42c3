// SPDX-License-Identifier: Apache-2.0

// This header covers the throttle of a GPU whose time the container may use only in part. The
// throttle delays launches until the container has allowance, and enters their work into the meter.
//
// VG_WORK is the body of a function that sends work to the GPU. In a container without a compute
// limit, VG_WORK costs two loads and a branch.

#ifndef VG_THROTTLE_H
#define VG_THROTTLE_H

#include "fastpath.h"
#include "memory/state.h"
#include "pages/limits.h"
#include "place.h"

// vg_throttle_state returns the state if any GPU of the container has a compute limit.
// vg_throttle_state returns NULL without a compute limit.
static inline struct vg_state *vg_throttle_state(void)
{
	struct vg_state *state = vg_state_ready();

	return state && __builtin_expect(vg_limits_throttled(&state->pages), 0) ? state : NULL;
}

// vg_throttle_enter waits for allowance and charges the work. vg_throttle_finish ends the launch
// with the driver's result, and returns that result.
void vg_throttle_enter(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work);
CUresult vg_throttle_finish(struct vg_ticket *ticket, CUresult result);

static inline void vg_throttle_begin(struct vg_state *state, struct vg_ticket *ticket,
				     const struct vg_work *work)
{
	if (!vg_fastpath_use(state, ticket, work))
		vg_throttle_enter(state, ticket, work);
}

static inline CUresult vg_throttle_end(struct vg_ticket *ticket, CUresult result)
{
	return ticket->meter || ticket->captured ? vg_throttle_finish(ticket, result) : result;
}

// vg_throttle_waited settles work of unknown length after a program has waited for that work.
void vg_throttle_waited(struct vg_state *state, struct vg_meter *meter);

// vg_throttle_drop_stream drops a stream before it is destroyed. vg_throttle_drop_context drops a
// context before its destruction is attempted. vg_throttle_left_context must follow with the result
// of the destruction. vg_throttle_forget discards the measurements of a key.
void vg_throttle_drop_stream(struct vg_state *state, CUstream stream);
void vg_throttle_drop_context(struct vg_state *state, CUcontext context);
void vg_throttle_left_context(struct vg_state *state, CUcontext context, bool ended);
void vg_throttle_forget(struct vg_state *state, uint64_t key);

#define VG_WORK(key, prior, stream, per_thread, call) VG_WORK_ON(0, key, prior, stream, per_thread, call)

// VG_WORK_ON is VG_WORK for work that may use several GPUs (`gpus` of struct vg_work).
#define VG_WORK_ON(gpus, key, prior, stream, per_thread, call)                           \
	do {                                                                             \
		struct vg_state *limited_ = vg_throttle_state();                         \
		struct vg_ticket ticket_;                                                \
                                                                                         \
		if (!limited_)                                                           \
			return call;                                                     \
		vg_throttle_begin(limited_, &ticket_,                                    \
				  &(struct vg_work){key, prior, stream, per_thread, gpus}); \
		return vg_throttle_end(&ticket_, call);                                  \
	} while (0)

#endif
