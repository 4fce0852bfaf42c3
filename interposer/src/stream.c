// SPDX-License-Identifier: Apache-2.0

#include "stream.h"

#include "claim.h"

// vg_can_tell reports whether this driver is one that tells a stream's device, as
// those since CUDA 12.8 do.
static bool vg_can_tell(void)
{
	enum { unknown, yes, no };
	static _Atomic int known;
	int can = atomic_load_explicit(&known, memory_order_relaxed);

	if (can == unknown) {
		can = vg_real_lookup(VG_SYM_cuStreamGetDevice) ? yes : no;
		atomic_store(&known, can);
	}
	return can == yes;
}

CUresult vg_stream_device(CUstream stream, CUdevice *device)
{
	CUcontext context = NULL;
	CUresult result;

	if (!stream || stream == vg_legacy_stream || stream == vg_per_thread_stream)
		return VG_CALL(cuCtxGetDevice, device);
	if (vg_can_tell())
		return VG_CALL(cuStreamGetDevice, stream, device);
	result = VG_CALL(cuStreamGetCtx, stream, &context);
	if (result)
		return result;
	if (vg_key(context) == vg_current_context())
		return VG_CALL(cuCtxGetDevice, device);
	result = VG_CALL(cuCtxPushCurrent_v2, context);
	if (result)
		return result;
	result = VG_CALL(cuCtxGetDevice, device);
	VG_CALL(cuCtxPopCurrent_v2, &context);
	return result;
}

CUresult vg_stream_event(CUevent *event, CUstream stream)
{
	CUcontext context = NULL;
	CUcontext before;
	bool pushed;
	CUresult result;

	if (stream && stream != vg_legacy_stream && stream != vg_per_thread_stream)
		VG_CALL(cuStreamGetCtx, stream, &context);
	pushed = context && vg_key(context) != vg_current_context() &&
		 VG_CALL(cuCtxPushCurrent_v2, context) == CUDA_SUCCESS;
	result = VG_CALL(cuEventCreate, event, CU_EVENT_DISABLE_TIMING);
	if (pushed)
		VG_CALL(cuCtxPopCurrent_v2, &before);
	return result;
}

enum vg_capturing vg_stream_ask_capturing(CUstream stream, bool per_thread)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = per_thread ? VG_CALL(cuStreamIsCapturing_ptsz, stream, &status) :
				       VG_CALL(cuStreamIsCapturing, stream, &status);

	if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return vg_beside_capture;
	if (result)
		return vg_capturing_unknown;
	return status == CU_STREAM_CAPTURE_STATUS_NONE ? vg_not_capturing : vg_is_capturing;
}
