// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements host functions in streams. One thread of the process runs each host function
 * when the timeline reaches the function. The stream continues when the function returns.
 */
#include "queue.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define POLL_NS UINT64_C(100000)

struct host_call {
	struct host_call *next;
	struct gs_ref ref;
	CUhostFn fn;
	void *data;
};

/* The process lock guards these variables. */
static struct {
	bool started;
	struct host_call *calls;
	pthread_cond_t changed;
} host;

static struct host_call *take_ready(uint64_t *wake)
{
	struct host_call **link, *call = NULL;
	uint64_t now;

	gs_lock(&sim.handle);
	gs_advance(&sim.handle, gs_now());
	sim_collect();
	now = sim.handle.state->clock_ns;
	*wake = UINT64_MAX;
	for (link = &host.calls; *link; link = &(*link)->next) {
		uint64_t estimate = gs_estimate(&sim.handle, (*link)->ref);

		if (gs_host_is_ready(&sim.handle, (*link)->ref)) {
			call = *link;
			*link = call->next;
			break;
		}
		/* An item that is due but not ready waits for another host function. */
		if (estimate <= now)
			estimate = now + POLL_NS;
		if (estimate < *wake)
			*wake = estimate;
	}
	gs_unlock(&sim.handle);
	return call;
}

static void wait_for_change(uint64_t until)
{
	struct timespec ts = {
		.tv_sec = (time_t)(until / UINT64_C(1000000000)),
		.tv_nsec = (long)(until % UINT64_C(1000000000)),
	};

	if (until == UINT64_MAX)
		pthread_cond_wait(&host.changed, &sim.mutex);
	else
		(void)pthread_cond_timedwait(&host.changed, &sim.mutex, &ts);
}

/* is_void reports whether a kernel of the process has trapped on the call's GPU. */
static bool is_void(const struct host_call *call)
{
	const struct gs_state *state = sim.handle.state;
	uint32_t gpu = state->items[sim.handle.id][call->ref.item].gpu;

	return state->procs[sim.handle.id].gpu[gpu].trapped != 0;
}

static void run(struct host_call *call)
{
	bool calls = !is_void(call);

	sim_unlock();
	sim_in_host_call = true;
	if (calls)
		call->fn(call->data);
	sim_in_host_call = false;
	sim_lock();
	gs_lock(&sim.handle);
	gs_advance(&sim.handle, gs_now());
	gs_host_done(&sim.handle, call->ref);
	gs_unlock(&sim.handle);
	free(call);
}

static void *host_thread(void *unused)
{
	(void)unused;
	sim_lock();
	for (;;) {
		uint64_t wake;
		struct host_call *call = take_ready(&wake);

		if (call)
			run(call);
		else
			wait_for_change(wake);
	}
	return NULL;
}

/* start_thread blocks the application's signals in this thread. */
static CUresult start_thread(void)
{
	pthread_condattr_t attributes;
	pthread_t thread;
	sigset_t all, before;
	int err;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&host.changed, &attributes);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&thread, NULL, host_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err)
		return CUDA_ERROR_OPERATING_SYSTEM;
	pthread_detach(thread);
	host.started = true;
	return CUDA_SUCCESS;
}

static CUresult new_call(CUhostFn fn, void *data, struct host_call **out)
{
	struct host_call *call = calloc(1, sizeof(*call));
	CUresult err = CUDA_SUCCESS;

	if (!call)
		return CUDA_ERROR_OUT_OF_MEMORY;
	call->fn = fn;
	call->data = data;
	sim_lock();
	if (!host.started)
		err = start_thread();
	sim_unlock();
	if (err)
		free(call);
	else
		*out = call;
	return err;
}

static void add_call(struct host_call *call)
{
	struct host_call **link;

	sim_lock();
	for (link = &host.calls; *link; link = &(*link)->next)
		;
	*link = call;
	pthread_cond_signal(&host.changed);
	sim_unlock();
}

CUresult sim_host_call(struct sim_stream *stream, CUhostFn fn, void *data)
{
	struct gs_work work = {.kind = GS_ITEM_HOST};
	struct host_call *call;
	CUresult err = new_call(fn, data, &call);

	if (err)
		return err;
	err = sim_submit(stream, &work, &call->ref);
	if (err)
		free(call);
	else
		add_call(call);
	return err;
}

CUresult sim_host_call_after(struct sim_device *device, CUhostFn fn, void *data,
			     const struct gs_ref *deps, size_t count, struct gs_ref *ref)
{
	struct gs_work work = {.kind = GS_ITEM_HOST};
	struct host_call *call;
	CUresult err = new_call(fn, data, &call);

	if (err)
		return err;
	err = sim_submit_after(device, &work, deps, count, &call->ref);
	if (err) {
		free(call);
		return err;
	}
	*ref = call->ref;
	add_call(call);
	return CUDA_SUCCESS;
}

static CUresult launch_host(CUstream handle, bool ptds, CUhostFn fn, void *data)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capturing(stream))
		return sim_capture_host(stream, fn, data);
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	return sim_host_call(stream, fn, data);
}

CU_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn fn, void *data),
	launch_host(stream, ptds, fn, data))

/* callback is a callback of the older API, which receives its stream. */
struct callback {
	CUstreamCallback fn;
	CUstream stream;
	void *data;
};

static void run_callback(void *argument)
{
	struct callback *callback = argument;

	callback->fn(callback->stream, CUDA_SUCCESS, callback->data);
	free(callback);
}

static CUresult add_callback(CUstream handle, bool ptds, CUstreamCallback fn, void *data,
			     unsigned flags)
{
	struct sim_stream *stream;
	struct callback *callback;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	if (err)
		return err;
	if (!fn || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_capturing(stream))
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	err = sim_capture_enqueue_guard(stream);
	if (err)
		return err;
	callback = malloc(sizeof(*callback));
	if (!callback)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*callback = (struct callback){fn, handle, data};
	err = sim_host_call(stream, run_callback, callback);
	if (err)
		free(callback);
	return err;
}

CU_PTSZ(cuStreamAddCallback, (CUstream stream, CUstreamCallback fn, void *data, unsigned flags),
	add_callback(stream, ptds, fn, data, flags))
