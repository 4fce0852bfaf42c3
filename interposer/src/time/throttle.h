// SPDX-License-Identifier: Apache-2.0

// The door through which work goes to a GPU of which the container may use only
// a part of the time: it waits until there is allowance, and enters the work
// into the meter.
//
// VG_WORK is the body of a function that gives the GPU work. In a container
// without a compute limit it costs two loads and a branch.

#ifndef VG_THROTTLE_H
#define VG_THROTTLE_H

#include "claim.h"

struct vg_on_way;
struct vg_meter;
struct vg_stream;

// vg_work is work about to be launched.
struct vg_work {
	uint64_t key;   // what is known of it; not 0
	uint64_t prior; // its length where nothing was measured, in ns
	CUstream stream;
	bool per_thread; // stream 0 is the thread's own
};

// vg_ticket is work that was let through.
struct vg_ticket {
	struct vg_state *state;
	struct vg_meter *meter; // NULL: it is not metered
	CUstream stream;
	uint64_t context, thread;
	uint32_t device;
	int64_t charge;
	bool per_thread;
	bool after; // there is something to do when it has been launched
	struct vg_on_way *on_way; // …it is counted there until it has been; NULL: nowhere
};

// vg_throttled_state is the state if any GPU of the container has a compute
// limit, else NULL.
static inline struct vg_state *vg_throttled_state(void)
{
	struct vg_state *state = vg_ready_state();

	return state && __builtin_expect(vg_is_throttled(&state->pages), 0) ? state : NULL;
}

// vg_ticket_fill finds out where work goes. It leaves the meter NULL where there is nothing
// to meter. vg_work_context is the context of the work's stream.
void vg_ticket_fill(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work);
bool vg_work_context(const struct vg_work *work, CUcontext *context);

// vg_permit_use enters the work without another look, if there is leave to: see permit.c.
bool vg_permit_use(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work);

// vg_work_enter waits for allowance and charges the work; vg_work_finish is told the
// launch's result where there is something to do then, and returns it.
void vg_work_enter(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work);
CUresult vg_work_finish(struct vg_ticket *ticket, CUresult result);

static inline void vg_work_begin(struct vg_state *state, struct vg_ticket *ticket,
				 const struct vg_work *work)
{
	if (!vg_permit_use(state, ticket, work))
		vg_work_enter(state, ticket, work);
}

static inline CUresult vg_work_end(struct vg_ticket *ticket, CUresult result)
{
	return ticket->meter && (ticket->after || ticket->on_way || result) ? vg_work_finish(ticket, result) :
										   result;
}

// vg_sleep_until sleeps until this vg_now, as exactly as the kernel can.
void vg_sleep_until(uint64_t when);

// vg_throttle_drop_stream forgets a stream before it is destroyed,
// vg_throttle_drop_context all of a context after it was; vg_throttle_forget
// what a key meant.
void vg_throttle_drop_stream(struct vg_state *state, CUstream stream);
void vg_throttle_drop_context(struct vg_state *state, CUcontext context);
void vg_throttle_forget(struct vg_state *state, uint64_t key);

// vg_work_key mixes what a launch is known by.
static inline uint64_t vg_work_key(uint64_t a, uint64_t b)
{
	uint64_t key = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xff51afd7ed558ccd);

	return (key ^ key >> 32) | 1;
}

#define VG_WORK(key, prior, stream, per_thread, call)                                    \
	do {                                                                             \
		struct vg_state *limited_ = vg_throttled_state();                        \
		struct vg_ticket ticket_;                                                \
                                                                                         \
		if (!limited_)                                                           \
			return call;                                                     \
		vg_work_begin(limited_, &ticket_,                                        \
			      &(struct vg_work){key, prior, stream, per_thread});        \
		return vg_work_end(&ticket_, call);                                      \
	} while (0)

#endif
