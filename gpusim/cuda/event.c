// SPDX-License-Identifier: Apache-2.0
/* This file implements events. */
#include "sim.h"

#include "queue.h"

#include <stdlib.h>

#define EVENT_MAGIC 0x45564e54U
#define RESOLUTION_NS 500 /* of elapsed times */

static CUresult event_of(CUevent handle, struct sim_event **event)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != EVENT_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	*event = handle;
	return sim_broken(handle->context->device);
}

CU_API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	struct sim_context *context;
	struct sim_event *event;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!out || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->magic = EVENT_MAGIC;
	event->context = context;
	event->flags = flags;
	sim_lock();
	event->next = context->events;
	context->events = event;
	sim_unlock();
	*out = event;
	return CUDA_SUCCESS;
}

static void unlink_event(struct sim_event *event)
{
	struct sim_event **link;

	for (link = &event->context->events; *link && *link != event; link = &(*link)->next)
		;
	if (*link)
		*link = event->next;
}

/* destroy_locked removes an event from its context, and frees the event when the timeline no longer
 * refers to the event. */
static void destroy_locked(struct sim_event *event)
{
	unlink_event(event);
	event->magic = 0;
	event->destroyed = true;
	if (event->in_flight == 0)
		sim_event_release(event);
}

void sim_event_free(struct sim_event *event)
{
	sim_lock();
	destroy_locked(event);
	sim_unlock();
}

static CUresult destroy(CUevent handle)
{
	struct sim_event *event;
	CUresult err = event_of(handle, &event);

	if (!err)
		sim_event_free(event);
	return err;
}

CU_API CUresult cuEventDestroy(CUevent event)
{
	return destroy(event);
}

CU_API CUresult cuEventDestroy_v2(CUevent event)
{
	return destroy(event);
}

/* foreign reports whether an event belongs to another context. For a lenient driver, foreign
 * reports whether the event belongs to another GPU. */
static bool foreign(const struct sim_event *event, const struct sim_context *context)
{
	if (sim.handle.state->driver.events_bound)
		return event->context != context;
	return event->context->device != context->device;
}

static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, bool ptds)
{
	struct sim_stream *stream;
	struct sim_event *event;
	CUresult err = event_of(handle, &event);

	if (!err)
		err = sim_stream_of(stream_handle, ptds, &stream);
	if (!err && flags > 1)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err)
		return err;
	if (foreign(event, stream->context))
		return CUDA_ERROR_INVALID_HANDLE;
	if (sim_capturing(stream))
		return sim_capture_event(stream, event);
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	event->capture = NULL;
	return sim_submit_event(stream, event);
}

CU_PTSZ(cuEventRecord, (CUevent event, CUstream stream), record(event, stream, 0, ptds))
CU_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
	record(event, stream, flags, ptds))

CU_API CUresult cuEventQuery(CUevent handle)
{
	struct sim_event *event;
	CUresult err = event_of(handle, &event);

	if (!err)
		err = sim_capture_asked(event);
	if (!err)
		err = sim_capture_guard();
	if (err)
		return err;
	return sim_ref_pending(event->last) ? CUDA_ERROR_NOT_READY : sim_broken(event->context->device);
}

CU_API CUresult cuEventSynchronize(CUevent handle)
{
	struct sim_event *event;
	CUresult err = event_of(handle, &event);

	if (!err)
		err = sim_capture_asked(event);
	if (!err)
		err = sim_capture_guard();
	if (err)
		return err;
	sim_wait(event->last);
	sim_pools_synced();
	return sim_broken(event->context->device);
}

/*
 * gpu_clock returns a time on the GPU's clock, which drifts from the host's clock. If the host's
 * clock is slewed, the host's clock runs faster than the GPU's clock for half a period, and then
 * slower.
 */
static uint64_t gpu_clock(const struct gs_gpu *gpu, uint64_t ns)
{
	uint64_t part = ns % gpu->slew_period_ns, half = gpu->slew_period_ns / 2;
	uint64_t ahead = part < half ? part : gpu->slew_period_ns - part;

	int64_t drift = (int64_t)(ns / 1000000) * gpu->drift_ppm + (int64_t)(ns % 1000000) * gpu->drift_ppm / 1000000;

	return ns + (uint64_t)drift + ahead * gpu->slew_ppm / 1000000;
}

/* timestamp returns the time at which the event was reached, on the GPU's clock. */
static CUresult timestamp(CUevent handle, uint64_t *ns)
{
	struct sim_event *event;
	CUresult err = event_of(handle, &event);
	bool collected; /* the query is fast, because the event's end is known already */

	if (err)
		return err;
	if (event->capture || !event->recorded || event->flags & CU_EVENT_DISABLE_TIMING)
		return CUDA_ERROR_INVALID_HANDLE;
	sim_lock();
	collected = event->in_flight == 0;
	*ns = gpu_clock(sim_gpu(event->context->device), event->end_ns);
	sim_unlock();
	if (collected)
		return CUDA_SUCCESS;
	if (sim_ref_pending(event->last))
		return CUDA_ERROR_NOT_READY;
	sim_lock();
	*ns = gpu_clock(sim_gpu(event->context->device), event->end_ns);
	sim_unlock();
	return CUDA_SUCCESS;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
	uint64_t from, to;
	int64_t steps;
	CUresult err = ms ? timestamp(start, &from) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		err = timestamp(end, &to);
	if (!err && foreign(start, end->context))
		err = CUDA_ERROR_INVALID_HANDLE;
	if (err)
		return err;
	steps = ((int64_t)(to - from) + (to >= from ? 1 : -1) * RESOLUTION_NS / 2) / RESOLUTION_NS;
	*ms = (float)((double)steps * RESOLUTION_NS / 1e6);
	return CUDA_SUCCESS;
}

CU_API CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	return elapsed(ms, start, end);
}

CU_API CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
	return elapsed(ms, start, end);
}

static CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags, bool ptds)
{
	struct sim_stream *stream;
	struct sim_event *event;
	CUresult err = event_of(handle, &event);

	if (!err)
		err = sim_stream_of(stream_handle, ptds, &stream);
	if (!err && flags > 1)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err)
		return err;
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	if (event->capture || sim_capturing(stream))
		return sim_capture_wait(stream, event);
	return sim_submit_wait(stream, event);
}

CU_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
	wait_event(stream, event, flags, ptds))
