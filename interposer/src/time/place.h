// SPDX-License-Identifier: Apache-2.0

// This header covers the search for the GPU and the context of work, with as few driver calls as
// possible.

#ifndef VG_PLACE_H
#define VG_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "driver/driver.h"

struct vg_on_way;
struct vg_meter;
struct vg_state;

// vg_work is work about to be launched.
struct vg_work {
	uint64_t key;   // the kind of work; not 0
	uint64_t prior; // estimate before any measurement, in ns
	CUstream stream;
	bool per_thread; // stream 0 is the thread's own default stream
	uint32_t gpus;   // bit mask of the GPUs that the work uses; 0: the GPU of the stream
};

// vg_ticket is a launch that the throttle handles.
struct vg_ticket {
	struct vg_state *state;
	struct vg_meter *meter; // NULL: the launch is not metered
	struct vg_work work;
	uint64_t context, thread;
	int64_t charge;
	uint64_t at; // vg_now at which the throttle admitted the launch
	bool captured;    // before the launch, the stream was captured
	uint64_t capture; // the number of the capture
	bool after; // call vg_throttle_finish after the launch
	struct vg_on_way *on_way; // counts launches in progress
	uint32_t segment; // number of the segment that has the work
	bool covered;     // the segment's events measure the work
};

// vg_work_key mixes two properties of a launch into a key.
static inline uint64_t vg_work_key(uint64_t a, uint64_t b)
{
	uint64_t key = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xff51afd7ed558ccd);

	return (key ^ key >> 32) | 1;
}

// vg_place_fill fills the ticket with the GPU and the context of work. The ticket's meter is NULL
// if the work is not metered. vg_place_meter does the same for work that no capture gets.
// vg_place_context finds the context of the work's stream, and reports whether it found a context.
void vg_place_fill(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work);
void vg_place_meter(struct vg_ticket *ticket);
bool vg_place_context(const struct vg_work *work, CUcontext *context);

// vg_place_beside returns a further meter of the same GPU, or the same meter if no memory is left.
struct vg_meter *vg_place_beside(struct vg_meter *meter);

#endif
