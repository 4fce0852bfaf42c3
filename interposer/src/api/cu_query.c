// SPDX-License-Identifier: Apache-2.0

// This file handles queries by programs that poll for the end of work.

#include "time/watch.h"

static CUresult vg_stream_asked(CUstream stream, bool per_thread, CUresult result)
{
	if (result == CUDA_ERROR_NOT_READY)
		vg_watch_polled();
	else if (!result)
		vg_watch_stream_waited(stream, per_thread);
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
		vg_watch_other_waited();
	return result;
}
