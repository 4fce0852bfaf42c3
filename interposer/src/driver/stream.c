// SPDX-License-Identifier: Apache-2.0

#include "stream.h"

#include "capture.h"
#include "handle.h"

// vg_can_tell reports whether this driver has cuStreamGetDevice, which CUDA 12.8 added.
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

	if (!vg_handle_is_created(stream))
		return VG_CALL(cuCtxGetDevice, device);
	if (vg_can_tell())
		return VG_CALL(cuStreamGetDevice, stream, device);
	result = VG_CALL(cuStreamGetCtx, stream, &context);
	if (result)
		return result;
	if (vg_handle_key(context) == vg_handle_context())
		return VG_CALL(cuCtxGetDevice, device);
	result = VG_CALL(cuCtxPushCurrent_v2, context);
	if (result)
		return result;
	result = VG_CALL(cuCtxGetDevice, device);
	VG_CALL(cuCtxPopCurrent_v2, &context);
	return result;
}

CUresult vg_stream_event(CUevent *event, uint64_t context, unsigned flags)
{
	bool pushed = context && context != vg_handle_context() &&
		      VG_CALL(cuCtxPushCurrent_v2, (CUcontext)(uintptr_t)context) == CUDA_SUCCESS;
	CUresult result = VG_CALL(cuEventCreate, event, flags);
	CUcontext popped;

	if (pushed)
		VG_CALL(cuCtxPopCurrent_v2, &popped);
	return result;
}

bool vg_stream_event_done(CUevent event)
{
	int mode = vg_capture_relax();
	CUresult result = VG_CALL(cuEventQuery, event);

	vg_capture_unrelax(mode);
	return result != CUDA_ERROR_NOT_READY;
}

CUresult vg_stream_record(CUevent event, CUstream stream, bool per_thread)
{
	return per_thread ? VG_CALL(cuEventRecord_ptsz, event, stream) : VG_CALL(cuEventRecord, event, stream);
}

bool vg_stream_elapsed(CUevent from, CUevent to, int64_t *ns)
{
	float ms = 0;

	if (VG_CALL(cuEventElapsedTime, &ms, from, to))
		return false;
	*ns = (int64_t)((double)ms * 1e6);
	return true;
}

bool vg_stream_broke(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
		return true;
	default:
		return false;
	}
}

enum vg_work_left vg_stream_ask(CUstream stream, bool per_thread)
{
	CUresult result;
	int mode;

	if (!vg_capture_touch_begin(stream, per_thread))
		return vg_work_unknown;
	mode = vg_capture_relax();
	result = per_thread ? VG_CALL(cuStreamQuery_ptsz, stream) :
			      VG_CALL(cuStreamQuery, stream);
	vg_capture_unrelax(mode);
	vg_capture_touch_end();
	if (result == CUDA_ERROR_NOT_READY)
		return vg_work_left;
	return result && !vg_stream_broke(result) ? vg_work_failed : vg_work_none;
}

bool vg_stream_ended(enum vg_work_left left)
{
	return left == vg_work_none || left == vg_work_failed;
}

bool vg_stream_is_done(CUstream stream, bool per_thread)
{
	return vg_stream_ended(vg_stream_ask(stream, per_thread));
}
