// SPDX-License-Identifier: Apache-2.0

// This header covers leads. A lead is a short piece of work that the interposer launches before the
// first event of a sample.
//
// On an idle stream, the GPU reaches that event at once, but reaches the program's work only after
// the launch. The launch is between the event and the work, and is measured as if it were work: 8 %
// of a kernel of 20 us. With a lead before the event, the GPU reaches the event when the launch is
// over. No time is subtracted. If the lead is too short, or the launch waits for the kernel, the
// measured time is longer than the work, and never shorter.

#ifndef VG_LEAD_H
#define VG_LEAD_H

#include <stdbool.h>

#include "driver/driver.h"

// vg_lead is host memory, which the GPU reaches over the bus. A memset of that memory takes as long
// as a launch. vg_lead belongs to one context and ends with that context.
struct vg_lead {
	uint64_t context; // 0: no memory was requested
	CUdeviceptr at;   // 0: the allocation has failed
};

// vg_lead_send launches a lead on a stream of a context. vg_lead_send launches nothing if the
// interposer must not touch the stream, or if the thread or the lead has another context.
void vg_lead_send(struct vg_lead *lead, CUstream stream, uint64_t context, bool per_thread);

// vg_lead_drop drops the lead of a destroyed context, which freed the lead's memory.
void vg_lead_drop(struct vg_lead *lead, uint64_t context);

#endif
