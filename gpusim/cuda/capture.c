// SPDX-License-Identifier: Apache-2.0
/*
 * Stream capture: calls on a capturing stream become graph nodes. Calls that a
 * capture forbids break it, in other threads too, as its mode says.
 */
#include "capture.h"

#include <stdlib.h>
#include <string.h>

static struct sim_capture *captures; /* under the process lock */
static __thread int thread_mode = CU_CAPTURE_MODE_GLOBAL;

/* The address of a thread's own variable tells running threads apart. */
static uint64_t this_thread(void)
{
	return (uint64_t)(uintptr_t)&thread_mode;
}

static int status_of(const struct sim_capture *capture)
{
	return __atomic_load_n(&capture->status, __ATOMIC_RELAXED);
}

static void break_capture(struct sim_capture *capture)
{
	__atomic_store_n(&capture->status, CU_CAPTURE_INVALIDATED, __ATOMIC_RELAXED);
}

bool sim_capturing(const struct sim_stream *stream)
{
	return __atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE) != NULL;
}

static CUresult intact(const struct sim_stream *stream)
{
	return status_of(stream->capture) == CU_CAPTURE_ACTIVE ? CUDA_SUCCESS :
								 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/* ---- what a capture forbids ---- */

static bool forbids(const struct sim_capture *capture)
{
	bool mine = capture->thread == this_thread();

	if (capture->mode == CU_CAPTURE_MODE_RELAXED)
		return false;
	if (thread_mode == CU_CAPTURE_MODE_THREAD_LOCAL)
		return mine;
	return mine || capture->mode == CU_CAPTURE_MODE_GLOBAL;
}

CUresult sim_capture_guard(void)
{
	CUresult err = CUDA_SUCCESS;

	if (thread_mode == CU_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	sim_lock();
	for (struct sim_capture *capture = captures; capture; capture = capture->next) {
		if (!forbids(capture))
			continue;
		break_capture(capture);
		err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	sim_unlock();
	return err;
}

static bool strict(void)
{
	return sim.handle.state->driver.capture_rules;
}

/* Whether streams of a context are captured that have none of these flags; breaks their
 * captures if asked to. */
static bool captured_streams(struct sim_context *context, unsigned without, bool breaks)
{
	bool any = false;

	sim_lock();
	for (struct sim_stream *s = context->streams; s; s = s->next) {
		if (!sim_capturing(s) || s->flags & without)
			continue;
		any = true;
		if (breaks)
			break_capture(s->capture);
	}
	sim_unlock();
	return any;
}

/* Waiting for a stream breaks its own capture; for the legacy one, any
 * capture of a stream that it would wait for. */
CUresult sim_capture_sync_guard(struct sim_stream *stream)
{
	if (sim_capturing(stream)) {
		break_capture(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	if (stream != stream->context->legacy ||
	    !captured_streams(stream->context, CU_STREAM_NON_BLOCKING, true))
		return CUDA_SUCCESS;
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult sim_capture_context_guard(struct sim_context *context)
{
	if (strict() && captured_streams(context, 0, true))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return sim_capture_guard();
}

CUresult sim_capture_enqueue_guard(struct sim_stream *stream)
{
	if (!strict() || stream != stream->context->legacy ||
	    !captured_streams(stream->context, CU_STREAM_NON_BLOCKING, true))
		return CUDA_SUCCESS;
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

bool sim_capture_implicit(struct sim_stream *stream)
{
	return strict() && stream == stream->context->legacy &&
	       captured_streams(stream->context, CU_STREAM_NON_BLOCKING, false);
}

CUresult sim_capture_asked(const struct sim_event *event)
{
	if (!event->capture)
		return CUDA_SUCCESS;
	sim_lock();
	for (struct sim_capture *c = captures; strict() && c; c = c->next)
		if (c == event->capture && c->id == event->capture_id)
			break_capture(c);
	sim_unlock();
	return CUDA_ERROR_CAPTURED_EVENT;
}

CU_API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = thread_mode;

	if (!mode || *mode < CU_CAPTURE_MODE_GLOBAL || *mode > CU_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return sim_ready();
}

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

/* A new node at the stream's end, still to be filled in. */
static CUresult append(struct sim_stream *stream, int type, struct sim_node **node)
{
	CUresult err = intact(stream);

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
	CUresult err = append(stream, CU_NODE_KERNEL, &node);

	return err ? err : finish(stream, node, sim_node_set_kernel(node, params));
}

CUresult sim_capture_memset(struct sim_stream *stream, const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_NODE_MEMSET, &node);

	if (err)
		return err;
	node->memset = *params;
	return finish(stream, node, CUDA_SUCCESS);
}

CUresult sim_capture_copy(struct sim_stream *stream, const CUDA_MEMCPY3D *params)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_NODE_MEMCPY, &node);

	if (err)
		return err;
	node->copy = *params;
	return finish(stream, node, CUDA_SUCCESS);
}

CUresult sim_capture_host(struct sim_stream *stream, CUhostFn fn, void *data)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_NODE_HOST, &node);

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
	CUresult err = append(stream, CU_NODE_MEM_ALLOC, &node);

	return err ? err : finish(stream, node, sim_node_set_alloc(node, size, ordinal, address));
}

CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_NODE_MEM_FREE, &node);

	if (err)
		return err;
	node->free = address;
	return finish(stream, node, CUDA_SUCCESS);
}

CUresult sim_capture_child(struct sim_stream *stream, struct sim_graph *graph)
{
	struct sim_node *node;
	CUresult err = append(stream, CU_NODE_GRAPH, &node);

	if (err)
		return err;
	node->child = sim_graph_copy(graph);
	if (!node->child)
		return finish(stream, node, CUDA_ERROR_OUT_OF_MEMORY);
	node->child->owned = true;
	return finish(stream, node, CUDA_SUCCESS);
}

/* ---- events carry captures from stream to stream ---- */

CUresult sim_capture_event(struct sim_stream *stream, struct sim_event *event)
{
	struct sim_node **tips;
	CUresult err = intact(stream);

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

	if (!event->capture) { /* work outside of the capture */
		break_capture(stream->capture);
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (!sim_capture_is_open(event->capture, event->capture_id))
		return CUDA_ERROR_CAPTURED_EVENT;
	if (stream == stream->context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (sim_capturing(stream) && stream->capture != event->capture) {
		break_capture(stream->capture);
		break_capture(event->capture);
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	__atomic_store_n(&stream->capture, event->capture, __ATOMIC_RELEASE);
	err = intact(stream);
	return err ? err : join_tips(stream, event);
}

/* ---- beginning and ending ---- */

bool sim_capture_is_open(const struct sim_capture *capture, uint64_t id)
{
	const struct sim_capture *c;
	bool open;

	sim_lock();
	for (c = captures; c && c != capture; c = c->next)
		;
	open = c && c->id == id;
	sim_unlock();
	return open;
}

CUresult sim_capture_begin(struct sim_stream *stream, struct sim_graph *graph, int mode)
{
	struct sim_capture *capture;

	if (mode < CU_CAPTURE_MODE_GLOBAL || mode > CU_CAPTURE_MODE_RELAXED)
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
	capture->thread = this_thread();
	capture->status = CU_CAPTURE_ACTIVE;
	capture->origin = stream;
	sim_lock();
	capture->id = sim.next_id++;
	capture->next = captures;
	captures = capture;
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

/* Whether every node of the capture lies before the origin's end. */
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
	struct sim_capture **link;

	sim_lock();
	for (link = &captures; *link && *link != capture; link = &(*link)->next)
		;
	if (*link)
		*link = capture->next;
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
	if (capture->mode != CU_CAPTURE_MODE_RELAXED && capture->thread != this_thread())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (capture->origin != stream)
		err = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	else
		err = intact(stream);
	if (!err && capture->own_graph && !all_joined(capture))
		err = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	*graph = err ? NULL : capture->graph;
	if (err && capture->own_graph)
		sim_graph_free(capture->graph);
	close_capture(capture);
	return err;
}

/* A destroyed stream takes the capture that it began with it. */
void sim_capture_abandon(struct sim_stream *stream)
{
	struct sim_capture *capture = stream->capture;

	if (!capture)
		return;
	if (capture->origin != stream) {
		break_capture(capture);
		return;
	}
	if (capture->own_graph)
		sim_graph_free(capture->graph);
	close_capture(capture);
}
