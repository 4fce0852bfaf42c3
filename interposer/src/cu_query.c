// SPDX-License-Identifier: Apache-2.0

// Questions whether work is done, of programs that ask over and over instead of
// waiting.

#include "claim.h"
#include "time/watch.h"

static CUresult vg_stream_asked(CUstream stream, bool per_thread, CUresult result)
{
	if (result == CUDA_ERROR_NOT_READY)
		vg_watch_polled();
	else if (!result)
		vg_watched_stream(stream, per_thread);
	return result;
}

VG_API(cuStreamQuery, CUstream stream)
{
	return vg_stream_asked(stream, false, VG_CALL(cuStreamQuery, stream));
}

VG_API(cuStreamQuery_ptsz, CUstream stream)
{
	return vg_stream_asked(stream, true, VG_CALL(cuStreamQuery_ptsz, stream));
}

VG_API(cuEventQuery, CUevent event)
{
	CUresult result = VG_CALL(cuEventQuery, event);

	if (result == CUDA_ERROR_NOT_READY)
		vg_watch_polled();
	else if (!result)
		vg_watched_other();
	return result;
}
