// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements calls that a capture forbids. A forbidden call invalidates the capture.
 * Depending on the capture's mode, a forbidden call of another thread also invalidates the capture.
 */
#include "capture.h"

static struct sim_capture *captures; /* under the process lock */
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* sim_capture_thread returns an id of the thread: the address of a thread-local variable. */
uint64_t sim_capture_thread(void)
{
	return (uint64_t)(uintptr_t)&thread_mode;
}

static int status_of(const struct sim_capture *capture)
{
	return __atomic_load_n(&capture->status, __ATOMIC_RELAXED);
}

void sim_capture_break(struct sim_capture *capture)
{
	__atomic_store_n(&capture->status, CU_STREAM_CAPTURE_STATUS_INVALIDATED, __ATOMIC_RELAXED);
}

bool sim_capturing(const struct sim_stream *stream)
{
	return __atomic_load_n(&stream->capture, __ATOMIC_ACQUIRE) != NULL;
}

CUresult sim_capture_intact(const struct sim_stream *stream)
{
	return status_of(stream->capture) == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS :
								 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static bool forbids(const struct sim_capture *capture)
{
	bool mine = capture->thread == sim_capture_thread();

	if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
		return mine;
	return mine || capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_capture_guard(void)
{
	CUresult err = CUDA_SUCCESS;

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	sim_lock();
	for (struct sim_capture *capture = captures; capture; capture = capture->next) {
		if (!forbids(capture))
			continue;
		sim_capture_break(capture);
		err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	sim_unlock();
	return err;
}

static bool strict(void)
{
	return sim.handle.state->driver.capture_rules;
}

/*
 * captured_streams reports whether a context has a captured stream without any of these flags. If
 * `breaks` is true, captured_streams also invalidates the streams' captures.
 */
static bool captured_streams(struct sim_context *context, unsigned without, bool breaks)
{
	bool any = false;

	sim_lock();
	for (struct sim_stream *s = context->streams; s; s = s->next) {
		if (!sim_capturing(s) || s->flags & without)
			continue;
		any = true;
		if (breaks)
			sim_capture_break(s->capture);
	}
	sim_unlock();
	return any;
}

/*
 * sim_capture_sync_guard checks a wait for a stream. A wait for a stream invalidates the stream's
 * capture. A wait for the legacy stream invalidates the capture of each stream for which the legacy
 * stream waits.
 */
CUresult sim_capture_sync_guard(struct sim_stream *stream)
{
	if (sim_capturing(stream)) {
		sim_capture_break(stream->capture);
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
			sim_capture_break(c);
	sim_unlock();
	return CUDA_ERROR_CAPTURED_EVENT;
}

CU_API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	int before = thread_mode;

	if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = before;
	return sim_ready();
}

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

void sim_capture_list(struct sim_capture *capture)
{
	capture->next = captures;
	captures = capture;
}

void sim_capture_unlist(struct sim_capture *capture)
{
	struct sim_capture **link;

	for (link = &captures; *link && *link != capture; link = &(*link)->next)
		;
	if (*link)
		*link = capture->next;
}
