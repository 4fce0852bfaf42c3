// SPDX-License-Identifier: Apache-2.0

#include "throttle.h"

#include "base/now.h"
#include "base/number.h"
#include "base/sleep.h"
#include "base/thread.h"
#include "driver/capture.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "events.h"
#include "forget.h"
#include "idle.h"
#include "meter.h"
#include "multi_gpu.h"
#include "pages/bucket.h"
#include "pages/limits.h"
#include "pages/slot.h"
#include "segment.h"

enum {
	vg_in_flight_ns = 5000000,     // limit of charged work in the queue
	vg_unmeasured_most = 8,        // limit of unfinished segments of unknown length
	vg_shortest_sleep_ns = 50000,
	// vg_poll_ns is the longest sleep until the next check of the queue, or for a peer's launch on
	// another GPU.
	vg_poll_ns = 500000,
	vg_most_beside = 2, // work side by side may be charged this many times its length
	vg_least_post_ns = 50000, // smallest debt that is worth the cost of charging the bucket
};

// vg_post charges the debt of this process to the bucket, which all processes of the container
// share.
static void vg_post(struct vg_pages *pages, struct vg_meter *meter)
{
	struct vg_container_device *bucket = &pages->usage->header.devices[meter->device];

	vg_bucket_charge(bucket, meter->owed);
	vg_add(&vg_slot_device(pages, (uint32_t)pages->slot, meter->device)->gpu_time_ns,
	       (uint64_t)meter->owed);
	meter->owed = 0;
}

// vg_fill_and_post refills the bucket at the container's current rate, and returns the balance.
// vg_fill_and_post posts the process's debt if the debt is large enough. A small debt is not posted
// until the debt has grown. If the process ends before that time, the debt is lost.
static int64_t vg_fill_and_post(struct vg_pages *pages, struct vg_meter *meter, uint64_t now)
{
	struct vg_container_device *bucket = &pages->usage->header.devices[meter->device];
	struct vg_lease lease = vg_limits_lease(pages, meter->device);
	uint32_t ppm = vg_limits_compute(pages, meter->device);
	int64_t cap = meter->outstanding > 0 ? vg_bucket_busy_cap : vg_bucket_idle_cap;

	if (meter->owed <= -vg_least_post_ns || meter->owed >= vg_least_post_ns)
		vg_post(pages, meter);
	return vg_bucket_fill(bucket, now, ppm, cap, lease) - meter->owed;
}

void vg_throttle_waited(struct vg_state *state, struct vg_meter *meter)
{
	uint64_t now;

	if (!meter->unmeasured.count)
		return;
	now = vg_now();
	vg_events_read(meter, now);
	(void)vg_fill_and_post(&state->pages, meter, now);
}

// ---- waiting

// vg_launch is a launch that waits for admission.
struct vg_launch {
	struct vg_ticket *ticket;
	struct vg_meter *meter;
	struct vg_stream *stream;
	struct vg_class *class;
	uint64_t came;
	uint64_t now;
	int64_t balance;
	uint32_t ppm;  // the container's part of the GPU's time
	uint32_t rate; // `ppm` with the time that is lent to the container
	bool slept; // the launch has slept for allowance
	bool blind; // the end of running work shows only in queries
	bool joins; // the work runs beside running work, and needs no allowance
};

static void vg_launch_look(struct vg_launch *launch)
{
	struct vg_pages *pages = &launch->ticket->state->pages;
	struct vg_meter *meter = launch->meter;

	launch->now = vg_now();
	launch->blind = meter->blind && vg_idle_blind(meter, launch->ticket->context, launch->now);
	vg_idle_drain(meter, launch->stream, launch->now, launch->ticket->work.per_thread);
	launch->ppm = vg_limits_compute(pages, meter->device);
	launch->rate = vg_bucket_rate(launch->ppm, vg_limits_lease(pages, meter->device), launch->now);
	launch->balance = vg_fill_and_post(pages, meter, launch->now);
}

static int64_t vg_launch_target(const struct vg_launch *launch)
{
	return launch->slept ? vg_bucket_target(launch->rate) : 1;
}

// vg_launch_phase returns the phase of the launch's GPU.
static struct vg_phase vg_launch_phase(const struct vg_launch *launch)
{
	struct vg_pages *pages = &launch->ticket->state->pages;
	uint32_t ppm[VG_MAX_DEVICES];

	if (pages->device_count == 1)
		return (struct vg_phase){false, 0};
	for (uint32_t i = 0; i < pages->device_count; i++)
		ppm[i] = vg_limits_compute(pages, i);
	return vg_multi_gpu_look(&pages->usage->header, ppm, pages->device_count,
				 launch->meter->device, launch->now);
}

// vg_launch_lack refills the buckets of the other GPUs that the work uses. vg_launch_lack returns the
// time until these GPUs have allowance, in ns.
static uint64_t vg_launch_lack(const struct vg_launch *launch)
{
	struct vg_pages *pages = &launch->ticket->state->pages;
	uint32_t ppm[VG_MAX_DEVICES];
	bool spent;

	if (!launch->class->also)
		return 0;
	for (uint32_t i = 0; i < pages->device_count; i++) {
		ppm[i] = launch->class->also >> i & 1 ? vg_limits_compute(pages, i) : VG_PPM;
		if (ppm[i] < VG_PPM)
			vg_bucket_fill(&pages->usage->header.devices[i], launch->now, ppm[i], vg_bucket_idle_cap,
				       vg_limits_lease(pages, i));
	}
	return vg_multi_gpu_lack(&pages->usage->header, ppm, pages->device_count, launch->now, &spent);
}

// vg_launch_joins reports whether the work may run beside running work, without allowance. Kernels
// of several streams that run at the same time take the GPU's time once. If the throttle admitted
// these kernels one by one, each kernel would take as much time as all kernels together. Events
// measure the kernels' joint time (events.c). While the joint time is unknown, or if the kernels
// run one after another, two kernels may run together.
static bool vg_launch_joins(const struct vg_launch *launch)
{
	const struct vg_meter *meter = launch->meter;
	const struct vg_class *class = launch->class;

	return class->measured && meter->outstanding > 0 && !launch->stream->blind &&
	       vg_stream_is_empty(launch->stream) && launch->ticket->state->pages.device_count == 1 &&
	       meter->together > 0 &&
	       meter->together + vg_meter_charge(meter, class) <= vg_most_beside * (int64_t)class->ns;
}

// vg_launch_cannot_see reports whether work of unknown length could not be measured. The work's stream
// has no free segment, or too much work of unknown length is unfinished.
static bool vg_launch_cannot_see(const struct vg_launch *launch)
{
	return !vg_estimate_is_known(launch->class, launch->now) &&
	       (launch->meter->unmeasured.count >= vg_unmeasured_most || vg_stream_is_full(launch->stream));
}

// vg_launch_first reports whether the launch must wait for the first measurement of its class. If
// the measurement takes too long, vg_launch_first raises the estimate to the time for which the
// measured piece has run.
static bool vg_launch_first(struct vg_launch *launch)
{
	struct vg_class *class = launch->class;
	uint64_t since;

	if (class->measured || !class->opened)
		return false;
	if (launch->now - class->opened < vg_stuck_ns)
		return true;
	vg_events_read(launch->meter, launch->now); // the work may have ended unnoticed
	since = class->measured ? 0 : vg_meter_since(launch->meter, class->key);
	if (since && launch->now - since > class->ns)
		class->ns = launch->now - since;
	return false;
}

// vg_launch_wait returns the time until the next check, in ns, or 0 if the work may be launched.
// A wait for allowance ends when the bucket is filled. A wait for a first measurement ends
// vg_stuck_ns after the last launch of the kind. Any other wait ends vg_stuck_ns after the launch
// came, because another thread or another GPU may wait for the work. After a wait in vain, launches
// of unknown length do not wait until some of the work is done. Launches of known length wait one
// by one, so that the queue of a stuck GPU grows slowly.
static uint64_t vg_launch_wait(struct vg_launch *launch)
{
	struct vg_meter *meter = launch->meter;
	bool late = launch->now - launch->came >= vg_stuck_ns;
	uint64_t lack = vg_launch_lack(launch);
	struct vg_phase phase;
	bool blind;

	if (lack) {
		launch->slept = true;
		return lack;
	}
	if (launch->ppm >= VG_PPM)
		return 0;
	phase = vg_launch_phase(launch);
	if (phase.behind)
		return 0;
	if (launch->balance < vg_launch_target(launch)) {
		// Dead processes are charged early, because their charge grows with time.
		if (!launch->slept)
			vg_slots_settle(&launch->ticket->state->pages, meter->device);
		launch->slept = true;
		return launch->blind ? vg_shortest_sleep_ns :
				       vg_bucket_delay(launch->balance, vg_launch_target(launch), launch->rate);
	}
	if (phase.wait && !late) {
		launch->slept = true;
		return phase.wait;
	}
	if (vg_launch_first(launch))
		return vg_shortest_sleep_ns;
	blind = vg_launch_cannot_see(launch);
	if (blind ? meter->stuck == meter->settled + 1 : meter->outstanding <= vg_in_flight_ns)
		return 0;
	if (late) {
		meter->stuck = meter->settled + 1;
		return 0;
	}
	return blind ? vg_shortest_sleep_ns :
		       vg_min((uint64_t)(meter->outstanding - vg_in_flight_ns) + vg_shortest_sleep_ns, vg_poll_ns);
}

// vg_stream_context returns the context of a created stream.
static uint64_t vg_stream_context(const struct vg_meter *meter, const struct vg_work *work)
{
	const struct vg_stream *last = meter->last;
	CUcontext context = NULL;

	if (last && last->used && last->handle == work->stream)
		return last->context;
	return vg_place_context(work, &context) ? vg_handle_key(context) : 0;
}

// vg_launch_find looks up the stream and the class of a launch. Each lock of the meter requires a
// new look-up, because the objects may have moved.
static void vg_launch_find(struct vg_launch *launch, const struct vg_work *work)
{
	struct vg_ticket *ticket = launch->ticket;

	vg_meter_drop_gone(launch->meter);
	if (!ticket->context)
		ticket->context = vg_stream_context(launch->meter, work);
	launch->stream = vg_meter_stream(launch->meter, ticket->work.stream, ticket->context, ticket->thread);
	if (launch->stream->failures >= vg_most_failures && !launch->stream->blind)
		vg_meter_blind(launch->meter, launch->stream);
	launch->class = vg_estimate_of(&launch->meter->estimates, work->key, work->prior);
	launch->class->also = (uint16_t)(work->gpus & ~(UINT32_C(1) << launch->meter->device));
}

// vg_launch_pass waits until the launch may proceed, and returns true with the meter locked.
// vg_launch_pass returns false if it could not lock the meter.
static bool vg_launch_pass(struct vg_launch *launch, const struct vg_work *work)
{
	if (!vg_meter_lock_in_turn(launch->meter, vg_stuck_ns))
		return false;
	vg_launch_find(launch, work);
	// Most of the outstanding work may be done, and earlier work of this kind may have been
	// measured.
	if (launch->meter->outstanding > vg_in_flight_ns || !launch->class->measured ||
	    launch->meter->unmeasured.count >= vg_unmeasured_most)
		vg_events_read(launch->meter, vg_now());
	vg_launch_look(launch);
	launch->came = launch->now;
	for (;;) {
		uint64_t wait = vg_launch_wait(launch);
		uint64_t least, due;

		launch->joins = wait && vg_launch_joins(launch);
		if (wait == 0 || launch->joins)
			return true;
		vg_segment_close_all(launch->meter, launch->ticket->context,
				     vg_thread_key(), launch->now);
		wait = vg_min(wait, launch->ticket->state->pages.device_count > 1 ? vg_poll_ns : vg_bucket_look_ns);
		due = vg_events_probe_due(launch->meter, launch->now);
		if (due <= launch->now) {
			vg_events_probe(launch->meter, launch->ticket->context, vg_now());
			due = launch->now + vg_probe_ns;
		}
		wait = vg_min(wait, due - launch->now);
		// Only one of the waiting threads checks at a time.
		least = vg_shortest_sleep_ns * (1 + (uint64_t)atomic_fetch_add(&launch->meter->waiting, 1));
		vg_meter_unlock(launch->meter);
		least = vg_min(least, vg_stuck_ns);
		vg_sleep_until(launch->now + (wait > least ? wait : least));
		atomic_fetch_sub(&launch->meter->waiting, 1);
		if (!vg_meter_lock_in_turn(launch->meter, vg_stuck_ns))
			return false;
		vg_events_read(launch->meter, vg_now());
		vg_launch_find(launch, work);
		vg_launch_look(launch);
	}
}

// vg_launch_admit locks a meter, and waits until the launch may proceed. If another thread is stuck in
// the driver with the meter, vg_launch_admit takes a meter beside that meter. Each meter charges its
// own work, so that concurrent work of two meters is charged twice.
static void vg_launch_admit(struct vg_launch *launch, const struct vg_work *work)
{
	struct vg_ticket *ticket = launch->ticket;
	struct vg_meter *meter = ticket->meter;

	while ((meter = atomic_load(&meter->beside)))
		if (vg_meter_try_lock(meter)) {
			vg_throttle_waited(ticket->state, meter);
			vg_meter_unlock(meter);
		}
	while (!vg_launch_pass(launch, work))
		ticket->meter = launch->meter = vg_place_beside(launch->meter);
}

// vg_launch_fastpath lets repeat launches skip the checks until the next check is necessary. A
// container with several GPUs has no fast path, because vg_throttle_enter must follow the GPUs'
// phases.
static void vg_launch_fastpath(const struct vg_launch *launch, const struct vg_work *work, uint64_t *launches)
{
	struct vg_ticket *ticket = launch->ticket;
	struct vg_meter *meter = launch->meter;
	int64_t room = vg_segment_room(launch->stream, launch->class);

	if (ticket->thread || ticket->state->pages.device_count > 1 ||
	    !vg_estimate_is_known(launch->class, launch->now))
		return;
	room = vg_least(room, vg_least_post_ns - meter->owed);
	room = vg_least(room, launch->balance - ticket->charge);
	room = vg_least(room, vg_in_flight_ns - meter->outstanding);
	meter->fastpath = (struct vg_fastpath){
		.key = work->key,
		.stream = launch->stream,
		.room = room,
		.ns = (int64_t)launch->class->ns,
		.charge = ticket->charge,
		.until = launch->now + vg_fastpath_ns,
		.launches = launches,
	};
}

void vg_throttle_enter(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work)
{
	struct vg_slot_device *slot;
	struct vg_launch launch;

	vg_place_fill(state, ticket, work);
	if (!ticket->meter)
		return;
	launch = (struct vg_launch){.ticket = ticket, .meter = ticket->meter};
	vg_launch_admit(&launch, work);
	slot = vg_slot_device(&state->pages, (uint32_t)state->pages.slot, ticket->meter->device);
	ticket->at = launch.now;
	ticket->charge = vg_meter_charge(ticket->meter, launch.class);
	ticket->meter->together = (launch.joins ? ticket->meter->together : 0) + ticket->charge;
	ticket->meter->owed += ticket->charge;
	if (ticket->charge >= vg_least_post_ns)
		vg_post(&state->pages, ticket->meter);
	vg_multi_gpu_launch(&state->pages.usage->header, state->pages.device_count,
			    work->gpus | UINT32_C(1) << ticket->meter->device);
	vg_tally(&slot->launches, 1);
	if (launch.slept)
		vg_tally(&slot->wait_ns, launch.now - launch.came);
	ticket->after = vg_segment_before(ticket->meter, launch.stream, launch.class, ticket->charge,
					  launch.now, ticket->work.per_thread);
	ticket->on_way = vg_meter_on_way_begin(launch.stream);
	ticket->segment = launch.stream->head;
	ticket->covered = vg_stream_segment(launch.stream)->covered;
	if (launch.stream->head - launch.stream->tail > vg_ring / 2)
		vg_events_read(ticket->meter, launch.now);
	else if (!ticket->after)
		vg_launch_fastpath(&launch, work, &slot->launches);
	vg_meter_unlock(ticket->meter);
}

// vg_throttle_captured enters work that ran, because another thread ended the capture between the
// check of the stream and the launch.
static CUresult vg_throttle_captured(struct vg_ticket *ticket, CUresult result)
{
	const struct vg_work *work = &ticket->work;
	struct vg_launch launch = {.ticket = ticket};

	if (result || (vg_capture_is_on(work->stream, work->per_thread) &&
		       vg_capture_id(work->stream, work->per_thread) == ticket->capture))
		return result;
	vg_place_meter(ticket);
	launch.meter = ticket->meter;
	if (!launch.meter)
		return result;
	while (!vg_meter_lock_in_turn(launch.meter, vg_stuck_ns))
		launch.meter = vg_place_beside(launch.meter);
	vg_launch_find(&launch, work);
	vg_segment_late(launch.meter, launch.stream, launch.class, ticket->at, work->per_thread);
	vg_meter_unlock(launch.meter);
	return result;
}

CUresult vg_throttle_finish(struct vg_ticket *ticket, CUresult result)
{
	struct vg_stream *stream;
	struct vg_class *class;
	bool closes, missed;

	if (ticket->captured)
		return vg_throttle_captured(ticket, result);
	missed = atomic_load(&ticket->on_way->count) <= 0; // an event did not wait for the launch
	closes = vg_meter_on_way_end(ticket->on_way);
	if (!ticket->after && !result && !closes)
		return result;
	if (!vg_meter_lock_in_turn(ticket->meter, vg_stuck_ns))
		return result; // the work stays entered
	stream = vg_meter_stream(ticket->meter, ticket->work.stream, ticket->context, ticket->thread);
	class = vg_estimate_of(&ticket->meter->estimates, ticket->work.key, ticket->work.prior);
	if (result)
		vg_segment_failed(ticket->meter, stream, ticket->segment, ticket->charge, ticket->covered);
	else if (missed && !vg_estimate_is_known(class, ticket->at))
		vg_segment_late(ticket->meter, stream, class, ticket->at, ticket->work.per_thread);
	// If launches wait for their kernels, the kernel may have run until the exception.
	if (vg_stream_broke(result))
		ticket->meter->owed += (int64_t)(vg_now() - ticket->at);
	vg_segment_after(ticket->meter, stream, ticket->work.per_thread);
	vg_meter_unlock(ticket->meter);
	return result;
}

// ---- ends

static void vg_throttle_drop(struct vg_state *state, enum vg_end kind, uint64_t key)
{
	// Another context or stream may get the handle.
	atomic_store(&state->place, 0);
	atomic_store(&state->stream_place, 0);
	for (size_t i = 0; i < VG_MAX_DEVICES; i++)
		for (struct vg_meter *meter = atomic_load(&state->meters[i]); meter; meter = atomic_load(&meter->beside)) {
			vg_forget(meter, kind, key);
			// The process may launch no more work, which would post the debt.
			if (kind == vg_end_left && vg_meter_try_lock(meter)) {
				(void)vg_fill_and_post(&state->pages, meter, vg_now());
				vg_meter_unlock(meter);
			}
		}
}

void vg_throttle_drop_stream(struct vg_state *state, CUstream stream)
{
	vg_throttle_drop(state, vg_end_stream, vg_handle_key(stream));
}

void vg_throttle_drop_context(struct vg_state *state, CUcontext context)
{
	vg_throttle_drop(state, vg_end_context, vg_handle_key(context));
}

void vg_throttle_left_context(struct vg_state *state, CUcontext context, bool ended)
{
	vg_throttle_drop(state, ended ? vg_end_left : vg_end_kept, vg_handle_key(context));
}

void vg_throttle_forget(struct vg_state *state, uint64_t key)
{
	vg_throttle_drop(state, vg_end_class, key);
}
