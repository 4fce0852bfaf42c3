// SPDX-License-Identifier: Apache-2.0
/* This file implements stream capture: calls on a capturing stream become graph nodes. */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

/* ---- nodes ---- */

CUresult sim_capture_set_tips(struct sim_stream *stream, struct sim_node *const *tips, size_t count)
{
	struct sim_node **copy = malloc((count + 1) * sizeof(*copy));

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (count)
		memcpy(copy, tips, count * sizeof(*copy));
	free(stream->tips);
	stream->tips = copy;
	stream->tip_count = count;
	return CUDA_SUCCESS;
}

/* append appends an empty node to the stream. */
static CUresult append(struct sim_stream *stream, int type, struct sim_node **node)
{
	CUresult err = sim_capture_intact(stream);

	if (err)
		return err;
	return sim_node_new(stream->capture->graph, type, stream->tips, stream->tip_count, node);
}

static CUresult finish(struct sim_stream *stream, struct sim_node *node, CUresult err)
{
	if (err) {
		(void)cuGraphDestroyNode(node);
		return err;
	}
	return sim_capture_set_tips(stream, &node, 1);
}

CUresult sim_capture_kernel(struct sim_stream *stream, const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_GRAPH_NODE_TYPE_KERNEL, &node);

	if (err)
		return err;
	err = sim_node_set_kernel(node, params);
	node->kernel.device = stream->context->device;
	return finish(stream, node, err);
}

CUresult sim_capture_memset(struct sim_stream *stream, const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_GRAPH_NODE_TYPE_MEMSET, &node);

	if (err)
		return err;
	node->memset = *params;
	return finish(stream, node, CUDA_SUCCESS);
}

CUresult sim_capture_copy(struct sim_stream *stream, const CUDA_MEMCPY3D *params)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &node);

	if (err)
		return err;
	node->copy = *params;
	return finish(stream, node, CUDA_SUCCESS);
}

CUresult sim_capture_host(struct sim_stream *stream, CUhostFn fn, void *data)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_GRAPH_NODE_TYPE_HOST, &node);

	if (err)
		return err;
	node->host.fn = fn;
	node->host.userData = data;
	return finish(stream, node, CUDA_SUCCESS);
}

CUresult sim_capture_alloc(struct sim_stream *stream, uint64_t size, CUdeviceptr *address)
{
	CUdevice ordinal = (CUdevice)(stream->context->device - sim.devices);
	struct sim_node *node;
	CUresult err = append(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node);

	return err ? err : finish(stream, node, sim_node_set_alloc(node, size, ordinal, address));
}

CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &node);

	if (err)
		return err;
	node->free = address;
	return finish(stream, node, CUDA_SUCCESS);
}

CUresult sim_capture_child(struct sim_stream *stream, struct sim_graph *graph)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_GRAPH_NODE_TYPE_GRAPH, &node);

	if (err)
		return err;
	node->child = sim_graph_copy(graph);
	if (!node->child)
		return finish(stream, node, CUDA_ERROR_OUT_OF_MEMORY);
	node->child->owned = true;
	return finish(stream, node, CUDA_SUCCESS);
}

/* ---- events carry captures between streams ---- */

CUresult sim_capture_event(struct sim_stream *stream, struct sim_event *event)
{
	struct sim_node **tips;
	CUresult err = sim_capture_intact(stream);

	if (err)
		return err;
	tips = malloc((stream->tip_count + 1) * sizeof(*tips));
	if (!tips)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (stream->tip_count)
		memcpy(tips, stream->tips, stream->tip_count * sizeof(*tips));
	free(event->tips);
	event->tips = tips;
	event->tip_count = stream->tip_count;
	event->capture = stream->capture;
	event->capture_id = stream->capture->id;
	return CUDA_SUCCESS;
}

static CUresult join_tips(struct sim_stream *stream, const struct sim_event *event)
{
	size_t count = stream->tip_count;
	struct sim_node **all = malloc((count + event->tip_count + 1) * sizeof(*all));
	CUresult err;

	if (!all)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (count)
		memcpy(all, stream->tips, count * sizeof(*all));
	for (size_t i = 0; i < event->tip_count; i++) {
		size_t j = 0;

		while (j < count && all[j] != event->tips[i])
			j++;
		if (j == count)
			all[count++] = event->tips[i];
	}
	err = sim_capture_set_tips(stream, all, count);
	free(all);
	return err;
}

CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event)
{
	CUresult err;

	if (!event->capture) { /* work outside the capture */
		sim_capture_break(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (!sim_capture_is_open(event->capture, event->capture_id))
		return CUDA_ERROR_CAPTURED_EVENT;
	if (stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (sim_capturing(stream) && stream->capture != event->capture) {
		sim_capture_break(stream->capture);
		sim_capture_break(event->capture);
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	__atomic_store_n(&stream->capture, event->capture, __ATOMIC_RELEASE);
	err = sim_capture_intact(stream);
	return err ? err : join_tips(stream, event);
}

/* ---- beginning and ending ---- */

CUresult sim_capture_begin(struct sim_stream *stream, struct sim_graph *graph, int mode)
{
	struct sim_capture *capture;

	if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (sim_capturing(stream))
		return CUDA_ERROR_ILLEGAL_STATE;
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return CUDA_ERROR_OUT_OF_MEMORY;
	capture->own_graph = !graph;
	capture->graph = graph ? graph : sim_graph_new();
	if (!capture->graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->mode = mode;
	capture->thread = sim_capture_thread();
	capture->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	capture->origin = stream;
	sim_lock();
	capture->id = sim.next_id++;
	sim_capture_list(capture);
	sim_unlock();
	stream->tip_count = 0;
	__atomic_store_n(&stream->capture, capture, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

static void mark_ancestors(struct sim_node *node)
{
	if (node->mark)
		return;
	node->mark = 1;
	for (size_t i = 0; i < node->dep_count; i++)
		mark_ancestors(node->deps[i]);
}

/* all_joined reports whether every node of the capture precedes the origin's end. */
static bool all_joined(const struct sim_capture *capture)
{
	for (struct sim_node *node = capture->graph->nodes; node; node = node->next)
		node->mark = 0;
	for (size_t i = 0; i < capture->origin->tip_count; i++)
		mark_ancestors(capture->origin->tips[i]);
	for (struct sim_node *node = capture->graph->nodes; node; node = node->next)
		if (!node->mark)
			return false;
	return true;
}

static void leave_streams(const struct sim_capture *capture)
{
	for (struct sim_context *context = sim.contexts; context; context = context->next) {
		for (struct sim_stream *s = context->streams; s; s = s->next) {
			if (s->capture != capture)
				continue;
			s->tip_count = 0;
			__atomic_store_n(&s->capture, NULL, __ATOMIC_RELEASE);
		}
	}
}

static void close_capture(struct sim_capture *capture)
{
	sim_lock();
	sim_capture_unlist(capture);
	leave_streams(capture);
	sim_unlock();
	free(capture);
}

CUresult sim_capture_end(struct sim_stream *stream, struct sim_graph **graph)
{
	struct sim_capture *capture = stream->capture;
	CUresult err;

	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != sim_capture_thread())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (capture->origin != stream)
		err = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	else
		err = sim_capture_intact(stream);
	if (!err && capture->own_graph && !all_joined(capture))
		err = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	*graph = err ? NULL : capture->graph;
	if (err && capture->own_graph)
		sim_graph_free(capture->graph);
	close_capture(capture);
	return err;
}

/* sim_capture_abandon ends the capture that a destroyed stream began. */
void sim_capture_abandon(struct sim_stream *stream)
{
	struct sim_capture *capture = stream->capture;

	if (!capture)
		return;
	if (capture->origin != stream) {
		sim_capture_break(capture);
		return;
	}
	if (capture->own_graph)
		sim_graph_free(capture->graph);
	close_capture(capture);
}
