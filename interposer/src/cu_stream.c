// SPDX-License-Identifier: Apache-2.0

// The end of streams: a new one may get the handle of an old one. And their captures: what
// is launched into one does not run.

#include "stream.h"
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

#define VG_DEFINE_CAPTURE(name, parameters, ...)     \
	VG_API(name, VG_PARAMETERS parameters)       \
	{                                            \
		vg_capture_begins();                 \
		return VG_CALL(name, __VA_ARGS__);   \
	}
#define VG_PARAMETERS(...) __VA_ARGS__

VG_DEFINE_CAPTURE(cuStreamBeginCapture, (CUstream stream), stream)
VG_DEFINE_CAPTURE(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
VG_DEFINE_CAPTURE(cuStreamBeginCapture_v2, (CUstream stream, int mode), stream, mode)
VG_DEFINE_CAPTURE(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), stream, mode)
VG_DEFINE_CAPTURE(cuStreamBeginCaptureToGraph,
		  (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges,
		   size_t count, int mode),
		  stream, graph, nodes, edges, count, mode)
VG_DEFINE_CAPTURE(cuStreamBeginCaptureToGraph_ptsz,
		  (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const void *edges,
		   size_t count, int mode),
		  stream, graph, nodes, edges, count, mode)
VG_DEFINE_CAPTURE(cuStreamBeginCaptureToCig, (CUstream stream, void *parameters), stream, parameters)
VG_DEFINE_CAPTURE(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, void *parameters), stream, parameters)
VG_DEFINE_CAPTURE(cuStreamBeginRecaptureToGraph,
		  (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
		  stream, mode, graph, callback, data)
VG_DEFINE_CAPTURE(cuStreamBeginRecaptureToGraph_ptsz,
		  (CUstream stream, int mode, CUgraph graph, void *callback, void *data),
		  stream, mode, graph, callback, data)
