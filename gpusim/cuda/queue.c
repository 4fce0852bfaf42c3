// SPDX-License-Identifier: Apache-2.0
/* This file queues work on the timeline, and waits for that work. */
#include "queue.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* HEADROOM is the room for a call's own item. Joining the item's dependencies may need more room.
 */
#define HEADROOM 16u
#define SHORTEST_SLEEP_NS 20000u
#define FULL_QUEUE_SLEEP_NS 200000u
#define HOST_POLL_NS 100000u
#define TRAP_POLL_NS 2000000u

void sim_queue_lock(void)
{
	pthread_mutex_lock(&sim.queue);
}

void sim_queue_unlock(void)
{
	pthread_mutex_unlock(&sim.queue);
}

static void sleep_until(uint64_t when)
{
	struct timespec ts = {
		.tv_sec = (time_t)(when / UINT64_C(1000000000)),
		.tv_nsec = (long)(when % UINT64_C(1000000000)),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

void sim_pass(uint64_t ns)
{
	if (ns)
		sleep_until(gs_now() + ns);
}

/*
 * wait_until waits until a time. Timers are late by some tens of microseconds. Therefore wait_until
 * polls during the last part of the wait, as the driver does. A yield in the polling loop would
 * cost a whole slice on a busy machine.
 */
static void wait_until(uint64_t when)
{
	uint64_t spin = sim.handle.state->spin_ns;
	uint64_t now = gs_now();

	if (when > now + spin + SHORTEST_SLEEP_NS)
		sleep_until(when - spin);
	while (gs_now() < when)
		;
}

void sim_event_release(struct sim_event *event)
{
	free(event->tips);
	free(event);
}

void sim_collect(void)
{
	struct gs_item item;

	while (gs_collect(&sim.handle, &item)) {
		struct sim_event *event = (struct sim_event *)(uintptr_t)item.tag;

		event->in_flight--;
		if (event->last.seq == item.seq)
			event->end_ns = item.end_ns;
		if (event->destroyed && event->in_flight == 0)
			sim_event_release(event);
	}
}

/* enter takes both locks and computes the timeline up to now. */
static void enter(void)
{
	sim_lock();
	gs_lock(&sim.handle);
	gs_advance(&sim.handle, gs_now());
	sim_collect();
}

static void leave(void)
{
	gs_unlock(&sim.handle);
	sim_unlock();
}

/*
 * enter_with_room first waits until the queue has room for work with this many dependencies, and
 * then enters like enter(). A join replaces four dependencies by one dependency, which may be
 * joined again. If the device accepts no work, enter_with_room returns the error and does not enter.
 */
static CUresult enter_with_room(const struct sim_device *device, size_t dependencies)
{
	const struct gs_proc *proc = &sim.handle.state->procs[sim.handle.id];
	size_t needed = HEADROOM + dependencies / 2;
	CUresult err;

	if (needed > GS_MAX_ITEMS)
		needed = GS_MAX_ITEMS;
	for (;;) {
		enter();
		err = sim_broken(device);
		if (!err && proc->pending + needed <= GS_MAX_ITEMS)
			return CUDA_SUCCESS;
		leave();
		if (err)
			return err;
		sleep_until(gs_now() + FULL_QUEUE_SLEEP_NS);
	}
}

/* join returns one reference that ends when all of these references have ended. The caller holds
 * both locks. */
static struct gs_ref join(struct sim_device *device, struct gs_ref *refs, size_t count)
{
	while (count > GS_MAX_DEPS) {
		struct gs_work work = {.kind = GS_ITEM_MARK, .gpu = device->gpu, .dep_count = GS_MAX_DEPS};

		for (size_t i = 0; i < GS_MAX_DEPS; i++)
			work.deps[i] = refs[--count];
		refs[count++] = gs_enqueue(&sim.handle, &work);
	}
	if (count == 0)
		return (struct gs_ref){0, 0};
	if (count == 1)
		return refs[0];
	struct gs_work work = {.kind = GS_ITEM_MARK, .gpu = device->gpu, .dep_count = (uint32_t)count};

	for (size_t i = 0; i < count; i++)
		work.deps[i] = refs[i];
	return gs_enqueue(&sim.handle, &work);
}

/* gather collects references, and joins the references when the array is full. The caller holds
 * both locks. */
struct gather {
	struct sim_device *device;
	struct gs_ref refs[32];
	size_t count;
};

static void gather_ref(struct gather *gather, struct gs_ref ref)
{
	if (!gs_is_pending(&sim.handle, ref))
		return;
	if (gather->count == 32) {
		gather->refs[0] = join(gather->device, gather->refs, gather->count);
		gather->count = 1;
	}
	gather->refs[gather->count++] = ref;
}

/* stream_dependencies returns the greatest number of streams for which new work of this stream may
 * have to wait. */
static size_t stream_dependencies(const struct sim_stream *stream)
{
	const struct sim_context *context = stream->context;

	if (stream != context->legacy)
		return 2;
	return __atomic_load_n(&context->stream_count, __ATOMIC_RELAXED);
}

/* gather_stream collects the work that new work of this stream must wait for. */
static void gather_stream(struct gather *gather, struct sim_stream *stream)
{
	struct sim_context *context = stream->context;

	gather_ref(gather, stream->last);
	if (stream->flags & CU_STREAM_NON_BLOCKING)
		return;
	if (stream != context->legacy) {
		if (context->legacy)
			gather_ref(gather, context->legacy->last);
		return;
	}
	for (struct sim_stream *s = context->streams; s; s = s->next)
		if (s != stream && !(s->flags & CU_STREAM_NON_BLOCKING))
			gather_ref(gather, s->last);
}

static struct gs_ref put(struct gather *gather, struct gs_work *work)
{
	if (gather->count > GS_MAX_DEPS) {
		work->deps[0] = join(gather->device, gather->refs, gather->count);
		work->dep_count = 1;
	} else {
		work->dep_count = (uint32_t)gather->count;
		for (size_t i = 0; i < gather->count; i++)
			work->deps[i] = gather->refs[i];
	}
	return gs_enqueue(&sim.handle, work);
}

/*
 * gather_connection collects the work that an item must wait for in its stream's hardware queue. A
 * kernel waits until the work ahead is issued, and other work waits until the work ahead has ended.
 * Copies have separate queues.
 */
static void gather_connection(struct gather *gather, const struct sim_stream *stream, bool kernel)
{
	struct sim_connection *connection = stream->connection;

	if (!connection)
		return;
	gather_ref(gather, kernel ? connection->issued : connection->ended);
	if (!kernel || !gather->count)
		return;
	/* Work is issued when all its dependencies are done: a mark records that time. */
	connection->issued = join(gather->device, gather->refs, gather->count);
	gather->refs[0] = connection->issued;
	gather->count = 1;
}

static void enter_connection(struct gather *gather, const struct sim_stream *stream, bool kernel,
			     struct gs_ref ref)
{
	struct sim_connection *connection = stream->connection;
	struct gs_ref both[] = {ref, connection ? connection->ended : ref};

	if (!connection)
		return;
	connection->ended = kernel && gs_is_pending(&sim.handle, both[1]) ? join(gather->device, both, 2) : ref;
	if (!kernel)
		connection->issued = ref;
}

/* only_copies reports whether all gathered work is copies. The copy engine stamps events behind
 * copies. */
static bool only_copies(const struct gather *gather)
{
	const struct gs_state *state = sim.handle.state;

	for (size_t i = 0; i < gather->count; i++)
		if (state->items[sim.handle.id][gather->refs[i].item].kind != GS_ITEM_COPY)
			return false;
	return gather->count != 0;
}

static CUresult submit(struct sim_stream *stream, struct sim_device *device, struct gs_work *work,
		       const struct gs_ref *deps, size_t count, struct gs_ref *ref)
{
	struct gather gather = {.device = device};
	bool queued = stream && work->kind == GS_ITEM_COMPUTE;
	struct gs_ref put_ref;
	CUresult err = sim_mps_alive();

	if (err)
		return err;
	work->gpu = device->gpu;
	sim_mps_squeeze(work);
	err = enter_with_room(device, count + (stream ? stream_dependencies(stream) : 0));
	if (err)
		return err;
	if (stream)
		gather_stream(&gather, stream);
	for (size_t i = 0; i < count; i++)
		gather_ref(&gather, deps[i]);
	if (queued)
		gather_connection(&gather, stream, true);
	if (gather.count && work->kind == GS_ITEM_COMPUTE)
		work->duration_ns += sim_gpu(device)->gap_ns;
	put_ref = put(&gather, work);
	if (stream)
		stream->last = put_ref;
	if (queued)
		enter_connection(&gather, stream, true, put_ref);
	if (ref)
		*ref = put_ref;
	leave();
	return put_ref.seq ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult sim_submit(struct sim_stream *stream, struct gs_work *work, struct gs_ref *ref)
{
	CUresult err;

	sim_queue_lock();
	err = submit(stream, stream->context->device, work, NULL, 0, ref);
	sim_queue_unlock();
	return err;
}

/*
 * put_event queues an event behind the gathered work, and stores the new item in event->last. The
 * stamp is work that takes no time, because the GPU stamps an event when the process has the GPU.
 * With `idle_stamp`, the GPU stamps an event without earlier work when the event arrives on the
 * GPU. With `copy_stamp`, the GPU stamps an event behind a copy at the copy's end.
 */
static struct gs_ref put_event(struct gather *gather, struct sim_event *event)
{
	struct gs_work work = {.kind = GS_ITEM_MARK, .gpu = gather->device->gpu};
	const struct gs_gpu *gpu = sim_gpu(gather->device);
	bool at_once = !gather->count && gpu->idle_stamp;
	bool by_copy = gpu->copy_stamp && only_copies(gather);

	if (!(event->flags & CU_EVENT_DISABLE_TIMING)) {
		work.kind = at_once && gpu->launch_ns ? GS_ITEM_COPY :
			    at_once || by_copy	       ? GS_ITEM_MARK :
							 GS_ITEM_COMPUTE;
		work.duration_ns = work.kind == GS_ITEM_COPY ? gpu->launch_ns : 0;
		work.tag = (uint64_t)(uintptr_t)event;
	}
	event->last = put(gather, &work);
	event->recorded = true;
	event->in_flight += work.tag != 0;
	return event->last;
}

CUresult sim_submit_event(struct sim_stream *stream, struct sim_event *event)
{
	struct gather gather = {.device = stream->context->device};
	CUresult err;

	sim_queue_lock();
	err = enter_with_room(gather.device, stream_dependencies(stream));
	if (!err) {
		gather_stream(&gather, stream);
		gather_connection(&gather, stream, false);
		stream->last = put_event(&gather, event);
		enter_connection(&gather, stream, false, stream->last);
		sim_collect();
		leave();
	}
	sim_queue_unlock();
	return err;
}

CUresult sim_submit_wait(struct sim_stream *stream, struct sim_event *event)
{
	struct gs_work work = {.kind = GS_ITEM_MARK};
	struct gather gather = {.device = stream->context->device};
	CUresult err;

	work.gpu = gather.device->gpu;
	sim_queue_lock();
	err = enter_with_room(gather.device, stream_dependencies(stream) + 1);
	if (!err && gs_is_pending(&sim.handle, event->last)) {
		gather_stream(&gather, stream);
		gather_ref(&gather, event->last);
		gather_connection(&gather, stream, false);
		stream->last = put(&gather, &work);
		enter_connection(&gather, stream, false, stream->last);
	}
	if (!err)
		leave();
	sim_queue_unlock();
	return err;
}

CUresult sim_submit_event_after(struct sim_device *device, struct sim_event *event,
				const struct gs_ref *deps, size_t count, struct gs_ref *ref)
{
	struct gather gather = {.device = device};
	CUresult err = enter_with_room(device, count);

	if (err)
		return err;
	for (size_t i = 0; i < count; i++)
		gather_ref(&gather, deps[i]);
	*ref = put_event(&gather, event);
	leave();
	return CUDA_SUCCESS;
}

CUresult sim_submit_wait_after(struct sim_device *device, struct sim_event *event,
			       const struct gs_ref *deps, size_t count, struct gs_ref *ref)
{
	struct gs_work work = {.kind = GS_ITEM_MARK, .gpu = device->gpu};
	struct gather gather = {.device = device};
	CUresult err = enter_with_room(device, count + 1);

	if (err)
		return err;
	for (size_t i = 0; i < count; i++)
		gather_ref(&gather, deps[i]);
	gather_ref(&gather, event->last);
	*ref = put(&gather, &work);
	leave();
	return CUDA_SUCCESS;
}

CUresult sim_submit_after(struct sim_device *device, struct gs_work *work, const struct gs_ref *deps,
			  size_t count, struct gs_ref *ref)
{
	return submit(NULL, device, work, deps, count, ref);
}

struct gs_ref sim_stream_end(struct sim_stream *stream)
{
	struct gather gather = {.device = stream->context->device};
	struct gs_ref ref;

	if (enter_with_room(gather.device, stream_dependencies(stream)))
		return (struct gs_ref){0, 0};
	gather_stream(&gather, stream);
	ref = join(gather.device, gather.refs, gather.count);
	leave();
	return ref;
}

CUresult sim_submit_join(struct sim_stream *stream, const struct gs_ref *deps, size_t count,
			 struct gs_ref *ref)
{
	struct gs_work work = {.kind = GS_ITEM_MARK};

	return submit(stream, stream->context->device, &work, deps, count, ref);
}

/* ---- waiting ---- */

bool sim_ref_pending(struct gs_ref ref)
{
	bool pending;

	enter();
	pending = gs_is_pending(&sim.handle, ref);
	leave();
	return pending;
}

void sim_wait(struct gs_ref ref)
{
	for (;;) {
		uint64_t estimate;
		bool pending;

		enter();
		pending = gs_is_pending(&sim.handle, ref);
		estimate = gs_estimate(&sim.handle, ref);
		/* A due item that is still pending waits for a host function. */
		if (estimate <= sim.handle.state->clock_ns)
			estimate = sim.handle.state->clock_ns + HOST_POLL_NS;
		/* An exception ends work before its time. */
		if (sim.handle.state->traps && estimate > sim.handle.state->clock_ns + TRAP_POLL_NS)
			estimate = sim.handle.state->clock_ns + TRAP_POLL_NS;
		leave();
		if (!pending)
			return;
		wait_until(estimate);
	}
}

/* stream_pending collects the work that the stream's next work would wait for. The caller holds
 * both locks. */
static bool stream_pending(struct sim_stream *stream, struct gs_ref *ref)
{
	struct gather gather = {.device = stream->context->device};

	gather_stream(&gather, stream);
	if (gather.count)
		*ref = gather.refs[0];
	return gather.count != 0;
}

void sim_wait_stream(struct sim_stream *stream)
{
	for (;;) {
		struct gs_ref ref = {0, 0};
		bool pending;

		enter();
		pending = stream_pending(stream, &ref);
		leave();
		if (!pending)
			break;
		sim_wait(ref);
	}
	sim_pools_synced();
}

bool sim_stream_busy(struct sim_stream *stream)
{
	struct gs_ref ref;
	bool pending;

	enter();
	pending = stream_pending(stream, &ref);
	leave();
	return pending;
}

void sim_wait_context(struct sim_context *context)
{
	for (;;) {
		struct gs_ref ref = {0, 0};

		enter();
		for (struct sim_stream *s = context->streams; s && !ref.seq; s = s->next)
			if (gs_is_pending(&sim.handle, s->last))
				ref = s->last;
		leave();
		if (!ref.seq)
			break;
		sim_wait(ref);
	}
	sim_pools_synced();
}
