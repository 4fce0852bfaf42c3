// SPDX-License-Identifier: Apache-2.0

// The end of streams: a new one may get the handle of an old one.

#include "throttle.h"

static void vg_stream_gone(CUstream stream)
{
	struct vg_state *state = vg_ready_state();

	if (state)
		vg_throttle_drop_stream(state, stream);
}

VG_API(cuStreamDestroy, CUstream stream)
{
	vg_stream_gone(stream);
	return VG_CALL(cuStreamDestroy, stream);
}

VG_API(cuStreamDestroy_v2, CUstream stream)
{
	vg_stream_gone(stream);
	return VG_CALL(cuStreamDestroy_v2, stream);
}
