// SPDX-License-Identifier: Apache-2.0
/* This file implements the entry points of stream capture. */
#include "capture.h"

#include <string.h>

static CUresult begin(CUstream handle, bool ptds, struct sim_graph *graph, const CUgraphNode *deps,
		      size_t count, int mode)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err)
		err = sim_capture_begin(stream, graph, mode);
	if (!err && count)
		err = sim_capture_set_tips(stream, deps, count);
	return err;
}

CU_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, int mode), begin(stream, ptds, NULL, NULL, 0, mode))

/* The first version of the call has no mode. */
CU_PTSZ(cuStreamBeginCapture, (CUstream stream),
	begin(stream, ptds, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL))

static CUresult begin_to_graph(CUstream stream, bool ptds, CUgraph handle, const CUgraphNode *deps,
			       size_t count, int mode)
{
	struct sim_graph *graph;
	CUresult err = sim_graph_of(handle, &graph);

	return err ? err : begin(stream, ptds, graph, deps, count, mode);
}

CU_PTSZ(cuStreamBeginCaptureToGraph,
	(CUstream stream, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *data,
	 size_t count, int mode),
	((void)data, begin_to_graph(stream, ptds, graph, deps, count, mode)))

static CUresult end(CUstream handle, bool ptds, CUgraph *graph)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	return graph ? sim_capture_end(stream, graph) : CUDA_ERROR_INVALID_VALUE;
}

CU_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph *graph), end(stream, ptds, graph))

static int status(const struct sim_stream *stream)
{
	if (!sim_capturing(stream))
		return CU_STREAM_CAPTURE_STATUS_NONE;
	return __atomic_load_n(&stream->capture->status, __ATOMIC_RELAXED);
}

/*
 * implicit returns the legacy stream's status beside the capture of a blocking stream. The status
 * is unspecified, so that callers that do not check the result read arbitrary values.
 */
static CUresult implicit(struct sim_stream *stream, int *out)
{
	static unsigned asked;

	if (!sim_capture_implicit(stream))
		return CUDA_SUCCESS;
	*out = (int)(__atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED) % 3);
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

static CUresult is_capturing(CUstream handle, bool ptds, int *out)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err && !out)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err)
		return err;
	*out = status(stream);
	return implicit(stream, out);
}

CU_PTSZ(cuStreamIsCapturing, (CUstream stream, int *out), is_capturing(stream, ptds, out))

struct capture_info {
	cuuint64_t *id;
	CUgraph *graph;
	const CUgraphNode **deps;
	const CUgraphEdgeData **data;
	size_t *count;
};

static CUresult info(CUstream handle, bool ptds, int *out, struct capture_info info)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = status(stream);
	err = implicit(stream, out);
	if (err || *out == CU_STREAM_CAPTURE_STATUS_NONE)
		return err;
	if (info.id)
		*info.id = stream->capture->id;
	if (info.graph)
		*info.graph = stream->capture->graph;
	if (info.deps)
		*info.deps = stream->tips;
	if (info.data)
		*info.data = NULL;
	if (info.count)
		*info.count = stream->tip_count;
	return CUDA_SUCCESS;
}

CU_PTSZ(cuStreamGetCaptureInfo, (CUstream stream, int *out, cuuint64_t *id),
	info(stream, ptds, out, (struct capture_info){.id = id}))
CU_PTSZ(cuStreamGetCaptureInfo_v2,
	(CUstream stream, int *out, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps,
	 size_t *count),
	info(stream, ptds, out, (struct capture_info){id, graph, deps, NULL, count}))
CU_PTSZ(cuStreamGetCaptureInfo_v3,
	(CUstream stream, int *out, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps,
	 const CUgraphEdgeData **data, size_t *count),
	info(stream, ptds, out, (struct capture_info){id, graph, deps, data, count}))

#define SET_DEPENDENCIES 1u

static CUresult update(CUstream handle, bool ptds, CUgraphNode *deps, size_t count, unsigned flags)
{
	CUgraphNode all[64];
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	if (!sim_capturing(stream))
		return CUDA_ERROR_ILLEGAL_STATE;
	if (flags & ~SET_DEPENDENCIES || (count && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & SET_DEPENDENCIES)
		return sim_capture_set_tips(stream, deps, count);
	if (stream->tip_count + count > sizeof(all) / sizeof(all[0]))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->tip_count)
		memcpy(all, stream->tips, stream->tip_count * sizeof(*all));
	if (count)
		memcpy(all + stream->tip_count, deps, count * sizeof(*all));
	return sim_capture_set_tips(stream, all, stream->tip_count + count);
}

CU_PTSZ(cuStreamUpdateCaptureDependencies,
	(CUstream stream, CUgraphNode *deps, size_t count, unsigned flags),
	update(stream, ptds, deps, count, flags))
CU_PTSZ(cuStreamUpdateCaptureDependencies_v2,
	(CUstream stream, CUgraphNode *deps, const CUgraphEdgeData *data, size_t count, unsigned flags),
	((void)data, update(stream, ptds, deps, count, flags)))
