// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "throttle.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#include "bucket.h"
#include "meter.h"
#include "phase.h"
#include "stream.h"

enum {
	vg_allowance_ns = 400000,      // waited for once there is none left: so many short
				       // launches share one sleep
	vg_allowance_wait_ns = 20000000, // …unless that takes longer than this
	vg_in_flight_ns = 5000000,     // charged work that may be queued
	vg_stuck_ns = 100000000,       // at most, for anything that the driver has to do
	vg_longest_sleep_ns = 20000000, // until a changed limit is looked for
	vg_longest_apart_ns = 1000000, // …or a peer that was launched on another GPU
	vg_shortest_sleep_ns = 50000,
	vg_poll_ns = 500000,
	vg_most_together = 2, // times its own length that work side by side may be charged
	vg_least_post_ns = 50000, // that is worth the cost of taking it from the bucket
	vg_permit_ns = 100000,     // for which the same work may go without another look
};

// The kernel's finest timer slack is set meanwhile: without, it comes 50 µs late.
void vg_sleep_until(uint64_t when)
{
	struct timespec at = {(time_t)(when / 1000000000), (long)(when % 1000000000)};
	int slack = prctl(PR_GET_TIMERSLACK);
	int saved = errno;

	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, 1ul);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		continue;
	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
	errno = saved;
}

// ---- waiting

// vg_door is one thread's way through the door.
struct vg_door {
	struct vg_ticket *ticket;
	struct vg_meter *meter;
	struct vg_stream *stream;
	struct vg_class *class;
	struct vg_container_device *bucket;
	uint64_t came;
	uint64_t now;
	int64_t balance;
	uint32_t ppm;  // the container's part of the GPU's time
	uint32_t rate; // …and what is lent to it
	bool slept; // for allowance
	bool joins; // work under way, and needs none
};

// vg_door_post takes from the bucket, which all of the container's processes share, what this
// one owes. Little waits until there is more of it, and stays unpaid if the process ends.
static void vg_door_post(struct vg_door *door)
{
	struct vg_pages *pages = &door->ticket->state->pages;
	struct vg_meter *meter = door->meter;

	vg_bucket_charge(door->bucket, meter->owed);
	if (meter->unknown)
		vg_bucket_return(door->bucket, meter->unknown, meter->unknown_since);
	vg_add(&vg_slot_device(pages, (uint32_t)pages->slot, door->ticket->device)->gpu_time_ns,
	       (uint64_t)meter->owed);
	meter->unknown = 0;
	meter->owed = 0;
}

static void vg_door_look(struct vg_door *door)
{
	struct vg_pages *pages = &door->ticket->state->pages;
	struct vg_meter *meter = door->meter;
	struct vg_lease lease = vg_compute_lease(pages, door->ticket->device);
	int64_t cap;

	door->now = vg_clock_now(&meter->clock);
	if (meter->wall.busy)
		vg_wall_look(meter, door->ticket->context, door->now);
	if (door->stream)
		vg_meter_drain(meter, door->stream, door->now, door->ticket->per_thread);
	cap = meter->outstanding > 0 ? vg_bucket_busy_cap : vg_bucket_idle_cap;
	door->ppm = vg_compute_limit(pages, door->ticket->device);
	door->rate = vg_bucket_rate(door->ppm, lease, door->now);
	if (meter->unknown) // what the bucket can not hold is counted first
		(void)vg_bucket_fill(door->bucket, door->now, door->ppm, cap, lease);
	if (meter->owed <= -vg_least_post_ns || meter->owed >= vg_least_post_ns || meter->unknown)
		vg_door_post(door);
	door->balance = vg_bucket_fill(door->bucket, door->now, door->ppm, cap, lease) - meter->owed;
	meter->clipped = vg_load(&door->bucket->clipped_ns);
}

static int64_t vg_door_target(const struct vg_door *door)
{
	int64_t earned = (int64_t)vg_allowance_wait_ns * door->rate / VG_PPM;

	if (!door->slept)
		return 1;
	return earned < vg_allowance_ns ? earned : vg_allowance_ns;
}

// vg_door_phase is what the container's other GPUs mean for this one.
static struct vg_phase vg_door_phase(const struct vg_door *door)
{
	struct vg_pages *pages = &door->ticket->state->pages;
	uint32_t ppm[VG_MAX_DEVICES];

	if (pages->device_count == 1)
		return (struct vg_phase){false, 0};
	for (uint32_t i = 0; i < pages->device_count; i++)
		ppm[i] = vg_compute_limit(pages, i);
	return vg_phase_look(&pages->usage->header, ppm, pages->device_count,
			     door->ticket->device, door->now);
}

// vg_door_joins reports whether the work may go beside what runs already, without
// allowance. Kernels of several streams that run at the same time take the GPU's
// time once: let in one by one, each would take as much as all. What they take
// together is learnt when they do (harvest.c): as long as that is unknown, or if
// they run one after another after all, two go together.
static bool vg_door_joins(const struct vg_door *door)
{
	const struct vg_meter *meter = door->meter;
	const struct vg_class *class = door->class;

	return class->measured && meter->outstanding > 0 && door->stream && !door->stream->blind &&
	       vg_stream_is_empty(door->stream) && door->ticket->state->pages.device_count == 1 &&
	       meter->together > 0 &&
	       meter->together + vg_meter_charge(meter, class) <= vg_most_together * (int64_t)class->ns;
}

// vg_door_cannot_see reports whether nothing would be learnt of the work: it is not known,
// and there is no room for measuring it, in its stream or for its stream. What there has
// been no room for in long may itself be waited for.
static bool vg_door_cannot_see(const struct vg_door *door)
{
	struct vg_stream *stream = door->stream;

	if (vg_class_is_known(door->class, door->now))
		return false;
	if (stream && stream->blind)
		return false;
	if (!stream)
		return door->now - door->came < vg_stuck_ns;
	if (!vg_stream_is_full(stream))
		return false;
	if (!stream->full_since || stream->full_tail != stream->tail) {
		stream->full_since = door->now;
		stream->full_tail = stream->tail;
	}
	return door->now - stream->full_since < vg_stuck_ns;
}

// vg_door_is_short reports whether there is no allowance. What work without events has taken
// beyond its charge counts for a while: it may be work that never ends.
static bool vg_door_is_short(const struct vg_door *door, uint64_t waited)
{
	int64_t target = vg_door_target(door);

	if (door->balance < target)
		return true;
	return door->balance - door->meter->wall.unfinished < target && waited < vg_stuck_ns;
}

// vg_door_first reports whether the work is to wait for the first measure of its class. Work
// for which that took too long lasts at least as long as the measured piece has.
static bool vg_door_first(struct vg_door *door)
{
	struct vg_class *class = door->class;
	uint64_t since;

	if (class->measured || !class->opened || (door->stream && door->stream->blind))
		return false;
	if (door->now - class->opened < vg_stuck_ns)
		return true;
	vg_meter_harvest(door->meter, door->now); // it may have come while nobody looked
	since = class->measured ? 0 : vg_meter_since(door->meter, class->key);
	if (since && door->now - since > class->ns)
		class->ns = door->now - since;
	return false;
}

// vg_door_in_flight reports whether enough is under way. Where a launch has waited for that in
// vain, those after it do not until some of it is done.
static bool vg_door_in_flight(const struct vg_door *door, uint64_t waited)
{
	struct vg_meter *meter = door->meter;

	if (meter->outstanding <= vg_in_flight_ns || meter->stuck == meter->settled + 1)
		return false;
	if (waited < vg_stuck_ns)
		return true;
	meter->stuck = meter->settled + 1;
	return false;
}

// vg_door_wait is how long to wait before the next look, in ns; 0: go on. All
// waits for the GPU end some time, whatever it does: another thread, or another
// GPU, may wait for the very work that is held back here. Waits for allowance
// do so by themselves.
static uint64_t vg_door_wait(struct vg_door *door)
{
	uint64_t waited = door->now - door->came;
	int64_t outstanding = door->meter->outstanding;

	struct vg_phase phase;

	if (door->ppm >= VG_PPM)
		return 0;
	phase = vg_door_phase(door);
	if (phase.behind)
		return 0;
	if (vg_door_is_short(door, waited)) {
		door->slept = true;
		return vg_bucket_delay(door->balance - door->meter->wall.unfinished,
				       vg_door_target(door), door->rate);
	}
	if (phase.wait && waited < vg_stuck_ns) {
		door->slept = true;
		return phase.wait;
	}
	if (vg_door_first(door))
		return vg_poll_ns / 5;
	if (vg_door_cannot_see(door))
		return vg_shortest_sleep_ns;
	if (vg_door_in_flight(door, waited))
		return outstanding - vg_in_flight_ns < vg_poll_ns ?
			       (uint64_t)(outstanding - vg_in_flight_ns) + vg_shortest_sleep_ns :
			       vg_poll_ns;
	return 0;
}

// vg_stream_context is the context of a stream that was made.
static uint64_t vg_stream_context(const struct vg_meter *meter, const struct vg_work *work)
{
	const struct vg_stream *last = meter->last;
	CUcontext context = NULL;

	if (last && last->used && last->handle == work->stream)
		return last->context;
	return vg_work_context(work, &context) ? vg_key(context) : 0;
}

// vg_door_find looks everything up anew: while the meter was not locked, it may
// have moved.
static void vg_door_find(struct vg_door *door, const struct vg_work *work)
{
	struct vg_ticket *ticket = door->ticket;

	if (!ticket->context)
		ticket->context = vg_stream_context(door->meter, work);
	door->stream = vg_meter_stream(door->meter, ticket->stream, ticket->context, ticket->thread);
	if (door->stream && door->stream->failures >= vg_most_failures && !door->stream->blind)
		vg_stream_blind(door->meter, door->stream);
	door->class = vg_class_of(&door->meter->estimates, work->key, work->prior);
}

// vg_door_pass returns with the meter locked, unless that could not be had.
static bool vg_door_pass(struct vg_door *door, const struct vg_work *work)
{
	if (!vg_meter_lock_in_turn(door->meter, vg_stuck_ns))
		return false;
	vg_door_find(door, work);
	// Most of it may be done, or what of this kind was launched before may be known by now.
	if (door->meter->outstanding > vg_in_flight_ns || !door->class->measured)
		vg_meter_harvest(door->meter, vg_now());
	vg_door_look(door);
	door->came = door->now;
	for (;;) {
		uint64_t wait = vg_door_wait(door);
		uint64_t least;

		door->joins = wait && vg_door_joins(door);
		if (wait == 0 || door->joins)
			return true;
		vg_meter_close_all(door->meter, door->ticket->context,
				   (uint64_t)(uintptr_t)__builtin_thread_pointer(), door->now);
		wait = vg_min(wait, door->ticket->state->pages.device_count > 1 ? vg_longest_apart_ns :
										  vg_longest_sleep_ns);
		if (vg_meter_wants_probes(door->meter)) {
			vg_meter_probe(door->meter, door->ticket->context, vg_now());
			wait = vg_min(wait, vg_probe_ns);
		}
		// Of many that wait, one looks at a time.
		least = vg_shortest_sleep_ns * (1 + (uint64_t)atomic_fetch_add(&door->meter->waiting, 1));
		vg_meter_unlock(door->meter);
		least = vg_min(least, vg_stuck_ns);
		vg_sleep_until(door->now + (wait > least ? wait : least));
		atomic_fetch_sub(&door->meter->waiting, 1);
		if (!vg_meter_lock_in_turn(door->meter, vg_stuck_ns))
			return false;
		vg_meter_harvest(door->meter, vg_now());
		vg_door_find(door, work);
		vg_door_look(door);
	}
}

// vg_door_unseen lets work go by that cannot be entered: another thread has the meter, and is
// held up in the driver. It is charged what it has waited for that.
static void vg_door_unseen(struct vg_door *door)
{
	struct vg_ticket *ticket = door->ticket;
	struct vg_pages *pages = &ticket->state->pages;
	struct vg_lease lease = {0};
	uint32_t ppm;

	while ((ppm = vg_compute_limit(pages, ticket->device)) < VG_PPM) {
		uint64_t now = vg_now();
		int64_t balance = vg_bucket_fill(door->bucket, now, ppm, vg_bucket_busy_cap, lease);

		if (balance > 0)
			break;
		vg_sleep_until(now + vg_min(vg_bucket_delay(balance, 1, ppm) + vg_shortest_sleep_ns,
					    vg_longest_sleep_ns));
	}
	vg_bucket_charge(door->bucket, vg_stuck_ns);
	vg_add(&vg_slot_device(pages, (uint32_t)pages->slot, ticket->device)->gpu_time_ns, vg_stuck_ns);
	vg_phase_launch(&pages->usage->header, pages->device_count, ticket->device);
	ticket->meter = NULL;
}

static int64_t vg_least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

// vg_door_permit lets the same work go by without another look, as far as can be seen from
// here. The phases of several GPUs are for the door to keep.
static void vg_door_permit(const struct vg_door *door, const struct vg_work *work, uint64_t *launches)
{
	struct vg_ticket *ticket = door->ticket;
	struct vg_meter *meter = door->meter;
	int64_t room = vg_meter_room(door->stream, door->class);

	if (ticket->thread || ticket->state->pages.device_count > 1 ||
	    !vg_class_is_known(door->class, door->now))
		return;
	room = vg_least(room, vg_least_post_ns - meter->owed);
	room = vg_least(room, door->balance - ticket->charge);
	room = vg_least(room, vg_in_flight_ns - meter->outstanding);
	meter->permit = (struct vg_permit){
		.key = work->key,
		.handle = work->stream,
		.context = ticket->context,
		.stream = door->stream,
		.segment = vg_stream_segment(door->stream),
		.room = room,
		.ns = (int64_t)door->class->ns,
		.charge = ticket->charge,
		.until = door->now + vg_permit_ns,
		.launches = launches,
		.on_way = ticket->on_way,
	};
}

void vg_work_enter(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work)
{
	struct vg_slot_device *slot;
	struct vg_door door;

	vg_ticket_fill(state, ticket, work);
	if (!ticket->meter)
		return;
	door = (struct vg_door){.ticket = ticket, .meter = ticket->meter,
				.bucket = &state->pages.usage->header.devices[ticket->device]};
	if (!vg_door_pass(&door, work)) {
		vg_door_unseen(&door);
		return;
	}
	slot = vg_slot_device(&state->pages, (uint32_t)state->pages.slot, ticket->device);
	ticket->charge = vg_meter_charge(ticket->meter, door.class);
	ticket->meter->together = (door.joins ? ticket->meter->together : 0) + ticket->charge;
	ticket->meter->owed += ticket->charge;
	if (ticket->charge >= vg_least_post_ns)
		vg_door_post(&door);
	vg_phase_launch(&state->pages.usage->header, state->pages.device_count, ticket->device);
	vg_tally(&slot->launches, 1);
	if (door.slept)
		vg_tally(&slot->wait_ns, door.now - door.came);
	vg_meter_note_thread(ticket->meter);
	if (door.stream)
		ticket->after = vg_meter_before(ticket->meter, door.stream, door.class,
						ticket->charge, door.now, ticket->per_thread);
	if (door.stream)
		ticket->on_way = vg_on_way_begin(ticket->meter, door.stream);
	if (door.stream && door.stream->head - door.stream->tail > vg_ring / 2)
		vg_meter_harvest(ticket->meter, door.now);
	else if (door.stream && !ticket->after)
		vg_door_permit(&door, work, &slot->launches);
	vg_meter_unlock(ticket->meter);
}

CUresult vg_work_finish(struct vg_ticket *ticket, CUresult result)
{
	bool closes = ticket->on_way && vg_on_way_end(ticket->on_way);
	struct vg_stream *stream;

	if (!ticket->after && !result && !closes)
		return result;
	if (!vg_meter_lock_in_turn(ticket->meter, vg_stuck_ns))
		return result; // what was entered stays
	stream = vg_meter_stream(ticket->meter, ticket->stream, ticket->context, ticket->thread);
	if (result)
		ticket->meter->owed -= ticket->charge;
	if (stream && stream->blind && result)
		vg_wall_failed(ticket->meter, ticket->charge);
	if (stream)
		vg_meter_after(ticket->meter, stream, ticket->per_thread, result != CUDA_SUCCESS);
	vg_meter_unlock(ticket->meter);
	return result;
}

// ---- ends

static void vg_throttle_drop(struct vg_state *state, enum vg_forgotten_kind kind, uint64_t key)
{
	for (size_t i = 0; i < VG_MAX_DEVICES; i++) {
		struct vg_meter *meter = atomic_load(&state->meters[i]);

		if (meter)
			vg_meter_forget(meter, kind, key);
	}
}

void vg_throttle_drop_stream(struct vg_state *state, CUstream stream)
{
	atomic_store(&state->stream_place, 0); // another may get its handle
	vg_throttle_drop(state, vg_forget_stream, vg_key(stream));
}

void vg_throttle_drop_context(struct vg_state *state, CUcontext context)
{
	atomic_store(&state->place, 0); // another may get its address
	atomic_store(&state->stream_place, 0);
	vg_throttle_drop(state, vg_forget_context, vg_key(context));
}

void vg_throttle_forget(struct vg_state *state, uint64_t key)
{
	vg_throttle_drop(state, vg_forget_class, key);
}
