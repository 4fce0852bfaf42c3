// SPDX-License-Identifier: Apache-2.0
/* This file implements streams. */
#include "sim.h"

#include <stdlib.h>

#define STREAM_MAGIC 0x5354524dU

/* thread_number returns a unique number of the thread, which is never reused. */
static uint64_t thread_number(void)
{
	static uint64_t last;
	static __thread uint64_t mine;

	if (!mine)
		mine = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	return mine;
}

CUresult sim_stream_new(struct sim_context *context, unsigned flags, int priority,
			struct sim_stream **out)
{
	struct sim_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->magic = STREAM_MAGIC;
	stream->context = context;
	stream->flags = flags;
	stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
	sim_lock();
	stream->id = sim.next_id++;
	stream->next = context->streams;
	context->streams = stream;
	if (context->connection_count)
		stream->connection = &context->connections[context->next_connection++ % context->connection_count];
	__atomic_add_fetch(&context->stream_count, 1, __ATOMIC_RELAXED);
	sim_unlock();
	*out = stream;
	return CUDA_SUCCESS;
}

/* sim_stream_free frees only the handle. Queued work continues. */
void sim_stream_free(struct sim_stream *stream)
{
	struct sim_stream **link;

	sim_capture_abandon(stream);
	sim_lock();
	for (link = &stream->context->streams; *link && *link != stream; link = &(*link)->next)
		;
	if (*link)
		*link = stream->next;
	__atomic_sub_fetch(&stream->context->stream_count, 1, __ATOMIC_RELAXED);
	sim_unlock();
	stream->magic = 0;
	free(stream->tips);
	free(stream);
}

static CUresult per_thread(struct sim_context *context, struct sim_stream **stream)
{
	uint64_t thread = thread_number();
	struct sim_stream *s;
	CUresult err;

	sim_lock();
	for (s = context->streams; s && s->thread != thread; s = s->next)
		;
	sim_unlock();
	if (s) {
		*stream = s;
		return CUDA_SUCCESS;
	}
	err = sim_stream_new(context, 0, 0, stream);
	if (err)
		return err;
	sim_lock(); /* other threads see the stream already */
	(*stream)->thread = thread;
	sim_unlock();
	return CUDA_SUCCESS;
}

CUresult sim_stream_of(CUstream handle, bool ptds, struct sim_stream **stream)
{
	struct sim_context *context;
	CUresult err;

	if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
		err = sim_ready();
		*stream = handle;
		if (err)
			return err;
		if (handle->magic != STREAM_MAGIC)
			return CUDA_ERROR_INVALID_HANDLE;
		return sim_broken(handle->context->device);
	}
	err = sim_current(&context);
	if (err)
		return err;
	if (handle == CU_STREAM_PER_THREAD || (!handle && ptds))
		return per_thread(context, stream);
	*stream = context->legacy;
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!out || flags & ~CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_stream_new(context, flags, priority, out);
}

CU_API CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	return cuStreamCreateWithPriority(out, flags, 0);
}

static CUresult destroy(CUstream handle)
{
	struct sim_stream *stream;
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	err = sim_stream_of(handle, false, &stream);
	if (err)
		return err;
	sim_stream_free(stream);
	return CUDA_SUCCESS;
}

CU_API CUresult cuStreamDestroy(CUstream stream)
{
	return destroy(stream);
}

CU_API CUresult cuStreamDestroy_v2(CUstream stream)
{
	return destroy(stream);
}

static CUresult query(CUstream handle, bool ptds)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err)
		err = sim_capture_sync_guard(stream);
	if (err)
		return err;
	return sim_stream_busy(stream) ? CUDA_ERROR_NOT_READY : sim_broken(stream->context->device);
}

CU_PTSZ(cuStreamQuery, (CUstream stream), query(stream, ptds))

static CUresult synchronise(CUstream handle, bool ptds)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err)
		err = sim_capture_sync_guard(stream);
	if (err)
		return err;
	sim_wait_stream(stream);
	return sim_broken(stream->context->device);
}

CU_PTSZ(cuStreamSynchronize, (CUstream stream), synchronise(stream, ptds))

static CUresult get_flags(CUstream handle, bool ptds, unsigned *flags)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err && !flags)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*flags = stream->flags;
	return err;
}

CU_PTSZ(cuStreamGetFlags, (CUstream stream, unsigned *flags), get_flags(stream, ptds, flags))

static CUresult get_priority(CUstream handle, bool ptds, int *priority)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err && !priority)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*priority = stream->priority;
	return err;
}

CU_PTSZ(cuStreamGetPriority, (CUstream stream, int *priority), get_priority(stream, ptds, priority))

static CUresult get_id(CUstream handle, bool ptds, unsigned long long *id)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err && !id)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*id = stream->id;
	return err;
}

CU_PTSZ(cuStreamGetId, (CUstream stream, unsigned long long *id), get_id(stream, ptds, id))

static CUresult get_context(CUstream handle, bool ptds, CUcontext *context)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err && !context)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*context = stream->context;
	return err;
}

CU_PTSZ(cuStreamGetCtx, (CUstream stream, CUcontext *context), get_context(stream, ptds, context))

static CUresult get_context_v2(CUstream handle, bool ptds, CUcontext *context, CUgreenCtx *green)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err && !context)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err)
		return err;
	*context = stream->context->green ? NULL : stream->context;
	if (green)
		*green = stream->context->green;
	return CUDA_SUCCESS;
}

CU_PTSZ(cuStreamGetCtx_v2, (CUstream stream, CUcontext *context, CUgreenCtx *green),
	get_context_v2(stream, ptds, context, green))

static CUresult get_device(CUstream handle, bool ptds, CUdevice *device)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (!err && !device)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*device = (CUdevice)(stream->context->device - sim.devices);
	return err;
}

CU_PTSZ(cuStreamGetDevice, (CUstream stream, CUdevice *device), get_device(stream, ptds, device))

/*
 * attribute accepts an attribute without effect, because attributes are preferences (L2 windows,
 * sync policy).
 */
static CUresult attribute(CUstream handle, bool ptds, const void *value)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	return err ? err : value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_PTSZ(cuStreamSetAttribute, (CUstream stream, int id, const void *value),
	((void)id, attribute(stream, ptds, value)))
CU_PTSZ(cuStreamCopyAttributes, (CUstream to, CUstream from),
	attribute(to, ptds, "") ? CUDA_ERROR_INVALID_HANDLE : attribute(from, ptds, ""))
