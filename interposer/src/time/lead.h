// SPDX-License-Identifier: Apache-2.0

// A lead is a little work of our own before the event with which a sample begins.
//
// On an idle stream the GPU reaches that event at once, but the program's work only after the
// launch. The launch lies between the event and the work, and is measured as if it were work: 8 %
// of a kernel of 20 us. Behind a lead, the GPU reaches the event when the launch is over. Nothing
// is subtracted. If the lead is too short, or the launch waits for the kernel, the measured time is
// longer than the work, and never shorter.

#ifndef VG_LEAD_H
#define VG_LEAD_H

#include <stdbool.h>

#include "driver/driver.h"

// vg_lead is memory of the host, which the GPU reaches over the bus: filling a little of it takes
// as long as a launch. vg_lead belongs to one context and ends with that context.
struct vg_lead {
	uint64_t context; // 0: none was requested
	CUdeviceptr at;   // 0: there is no memory
};

// vg_lead_send sends a lead down a stream of a context. vg_lead_send sends none if the stream must
// be left alone, or if the thread's or the lead's context is another. The pieces of a sample have
// leads of different lengths: 0 is none, 1 the shortest, each further one twice as long.
void vg_lead_send(struct vg_lead *lead, uint32_t length, CUstream stream, uint64_t context,
		  bool per_thread);

// vg_lead_drop drops the lead of a destroyed context, which freed the lead's memory.
void vg_lead_drop(struct vg_lead *lead, uint64_t context);

#endif
