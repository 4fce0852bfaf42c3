// SPDX-License-Identifier: Apache-2.0

// This file handles the destruction of streams, and captures of streams. After a destruction, a new
// stream may have the same handle. Work that a program launches into a capture does not run.

#include "driver/capture.h"
#include "load/capture_count.h"
#include "time/throttle.h"

#define VG_DEFINE_DESTROY(name)                                     \
	VG_API(name, CUstream stream)                               \
	{                                                           \
		struct vg_state *state = vg_state_ready();          \
		unsigned captures;                                  \
		CUresult result;                                    \
                                                                    \
		if (!state)                                         \
			return VG_CALL(name, stream);               \
		captures = vg_capture_forget(stream);               \
		vg_throttle_drop_stream(state, stream);             \
		result = VG_CALL(name, stream);                     \
		if (result && captures)                             \
			vg_capture_remember(stream, captures);      \
		return result;                                      \
	}

VG_DEFINE_DESTROY(cuStreamDestroy)
VG_DEFINE_DESTROY(cuStreamDestroy_v2)

#define VG_PARAMETERS(...) __VA_ARGS__

#define VG_DEFINE_CAPTURE_END(name, per_thread, parameters, ...)                                   \
	VG_API(name, VG_PARAMETERS parameters)                                                     \
	{                                                                                          \
		CUresult result = VG_CALL(name, __VA_ARGS__);                                      \
                                                                                                   \
		return vg_state_ready() ? vg_capture_ended(stream, per_thread, result) : result;   \
	}

VG_DEFINE_CAPTURE_END(cuStreamEndCapture, false, (CUstream stream, CUgraph *graph), stream, graph)
VG_DEFINE_CAPTURE_END(cuStreamEndCapture_ptsz, true, (CUstream stream, CUgraph *graph), stream, graph)
VG_DEFINE_CAPTURE_END(cuStreamEndCaptureToCig, false, (CUstream stream), stream)
VG_DEFINE_CAPTURE_END(cuStreamEndCaptureToCig_ptsz, true, (CUstream stream), stream)

// A stream that waits for an event of a capture joins that capture.
#define VG_DEFINE_JOIN(name)                                                        \
	VG_API(name, CUstream stream, CUevent event, unsigned flags)                \
	{                                                                           \
		CUresult result;                                                    \
                                                                                    \
		if (!vg_capture_count_maybe())                                      \
			return VG_CALL(name, stream, event, flags);                 \
		vg_capture_join_begin();                                            \
		result = VG_CALL(name, stream, event, flags);                       \
		vg_capture_join_end();                                              \
		return result;                                                      \
	}

VG_DEFINE_JOIN(cuStreamWaitEvent)
VG_DEFINE_JOIN(cuStreamWaitEvent_ptsz)

#define VG_DEFINE_CAPTURE(name, parameters, ...)                             \
	VG_API(name, VG_PARAMETERS parameters)                               \
	{                                                                    \
		if (!vg_state_ready())                                       \
			return VG_CALL(name, __VA_ARGS__);                   \
		vg_capture_prepare();                                        \
		return vg_capture_begun(stream, VG_CALL(name, __VA_ARGS__)); \
	}

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
