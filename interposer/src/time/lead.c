// SPDX-License-Identifier: Apache-2.0

#include "lead.h"

#include "driver/capture.h"
#include "driver/handle.h"

// A lead takes 4 us on a bus of 64 GB/s and 16 us on a bus of 16 GB/s. On an H200, a launch takes 3
// us, and the recording of the event before the launch takes 1.3 us.
enum { vg_lead_bytes = 256 << 10 };

// vg_lead_make allocates a lead's memory in the thread's context.
static void vg_lead_make(struct vg_lead *lead, uint64_t context)
{
	int mode = vg_capture_relax();
	void *host = NULL;

	*lead = (struct vg_lead){.context = context};
	if (VG_CALL(cuMemHostAlloc, &host, vg_lead_bytes, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS &&
	    VG_CALL(cuMemHostGetDevicePointer_v2, &lead->at, host, 0) != CUDA_SUCCESS)
		lead->at = 0;
	vg_capture_unrelax(mode);
}

void vg_lead_send(struct vg_lead *lead, CUstream stream, uint64_t context, bool per_thread)
{
	if (!context || vg_handle_context() != context || (lead->context && lead->context != context))
		return;
	if (!lead->context)
		vg_lead_make(lead, context);
	if (!lead->at || !vg_capture_touch_begin(stream, per_thread))
		return;
	// If the driver returns an error, the sample has no lead, and the measured time is longer.
	if (per_thread)
		VG_CALL(cuMemsetD8Async_ptsz, lead->at, 0, vg_lead_bytes, stream);
	else
		VG_CALL(cuMemsetD8Async, lead->at, 0, vg_lead_bytes, stream);
	vg_capture_touch_end();
}

void vg_lead_drop(struct vg_lead *lead, uint64_t context)
{
	if (lead->context == context)
		*lead = (struct vg_lead){0};
}
