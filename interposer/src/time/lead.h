// SPDX-License-Identifier: Apache-2.0

// A lead: a little work of our own before the event with which a sample begins.
//
// On a stream that is dry the GPU reaches such an event at once, and the program's work only when
// that has been launched. The launch lies between the two and is measured as if it were work: 8 % of
// a kernel of 20 us. Behind a lead, the GPU reaches the event when the launch is over. Nothing is
// subtracted: if the lead is too short, or the launch waits for the kernel, more is measured than the
// work took, and never less.

#ifndef VG_LEAD_H
#define VG_LEAD_H

#include <stdbool.h>

#include "driver.h"

// vg_lead is memory of the host, which the GPU reaches over the bus: filling little of it takes as
// long as a launch. It is one context's, and ends with that.
struct vg_lead {
	uint64_t context; // 0: none has been asked for
	CUdeviceptr at;   // 0: there is none
};

// vg_lead_send sends a lead down a stream of a context, unless the stream is to be left alone, the
// thread has another context, or the lead is another's. Each of a sample's pieces has another
// length of it: 0 is none, 1 the shortest, each further one twice as long.
void vg_lead_send(struct vg_lead *lead, uint32_t length, CUstream stream, uint64_t context,
		  bool per_thread);

// vg_lead_drop forgets the lead of a context that was destroyed, with which its memory went.
void vg_lead_drop(struct vg_lead *lead, uint64_t context);

#endif
