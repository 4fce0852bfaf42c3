// SPDX-License-Identifier: Apache-2.0

// What the meter charges for work of several streams, and that it makes as many events
// as they can have under way. The driver here counts events and has a clock of its own,
// which stands still but while work runs.

#include "time/meter.h"

#include <pthread.h>
#include <time.h>

#include "check.h"
#include "events.h"
#include "pages.h"

enum { contexts = 2, streams_of_each = 2, turns = 1000 };

static const uint64_t work_ns = 1200000;

static uint64_t clock_ns = 1000000000; // less than the machine's, since it was started
static const uint64_t *program_ns = &clock_ns; // the time of the program, which may be ahead of its work

// A container that has the GPU to itself, as the agent says.
static const struct vg_limits_page limits = {.others_looks = {UINT64_C(1) << VG_LEASE_PPM_BITS}};
static struct vg_usage_page usage;
static const struct vg_pages pages = {.limits = &limits, .usage = &usage};

static uint64_t work_time(void)
{
	return clock_ns;
}

static uint64_t program_time(void)
{
	return *program_ns;
}

static CUstream stream_of(uint64_t context, uint64_t number)
{
	return (CUstream)(uintptr_t)(context << 20 | (number + 1) << 4);
}

// launch has work of a class done, and returns what it was charged.
static int64_t launch(struct vg_meter *meter, uint64_t context, uint64_t number, uint64_t key, uint64_t prior)
{
	struct vg_class *class = vg_class_of(&meter->estimates, key, prior);
	struct vg_stream *stream = vg_meter_stream(meter, stream_of(context, number), context, 0);
	int64_t charge = vg_meter_charge(meter, class);
	bool after;

	CHECK(stream);
	after = vg_meter_before(meter, stream, class, charge, clock_ns, false);
	clock_ns += work_ns;
	if (after)
		vg_meter_after(meter, stream, false, false);
	return charge;
}

// Work is charged for what it took, also where each piece is the first of its kind.
static void test_nothing_is_known(void)
{
	static struct vg_meter meter = {.pages = &pages};
	int64_t charged = 0;
	int64_t took = 0;
	uint64_t key = 1;

	for (int turn = 0; turn < turns; turn++) {
		for (uint64_t s = 0; s < streams_of_each; s++) {
			charged += launch(&meter, 1, s, key++, work_ns / 20);
			took += (int64_t)work_ns;
		}
		vg_meter_harvest(&meter, clock_ns);
	}
	charged += meter.owed;
	CHECK(charged > took - took / 50 && charged < took + took / 50);
}

// A program may have more streams than are followed at a time.
static void test_many_streams(void)
{
	static struct vg_meter meter = {.pages = &pages};
	int64_t charged = 0;
	int64_t took = 0;

	events_count = 0;
	for (uint64_t s = 0; s < 4 * vg_meter_streams; s++) {
		charged += launch(&meter, 1, s, s + 1, work_ns / 20);
		took += (int64_t)work_ns;
		vg_meter_harvest(&meter, clock_ns);
	}
	charged += meter.owed;
	CHECK(charged > took - took / 50 && charged < took + took / 50);
	CHECK(events_count <= vg_meter_streams * 2 + 2);
}

static void wait_ns(uint64_t ns)
{
	uint64_t from = vg_now();

	while (vg_now() - from < ns)
		continue;
}

// Short work takes the same in runs as by itself, though there less is measured of it, as
// its launch is a part of what events tell: it is not taken to vary.
static void test_short_work(void)
{
	static struct vg_meter meter = {.pages = &pages};
	const uint64_t short_ns = 4000, launch_ns = 500, pause_ns = 1000000;
	CUstream handle = stream_of(1, 0);
	struct vg_stream *stream = vg_meter_stream(&meter, handle, 1, 0);
	struct vg_class *class = vg_class_of(&meter.estimates, 1, 50000);
	uint64_t now = clock_ns;

	program_ns = &now;
	for (int turn = 0; turn < turns; turn++) {
		for (int i = turn % 2 ? 300 : 1; i > 0; i--) {
			bool after = vg_meter_before(&meter, stream, class, (int64_t)class->ns, now, false);

			wait_ns(launch_ns);
			now += launch_ns;
			clock_ns += short_ns;
			if (after)
				vg_meter_after(&meter, stream, false, false);
		}
		now = clock_ns;
		vg_meter_harvest(&meter, now);
		vg_meter_waited(&meter, handle, 1, 0, now);
		CHECK_EQUAL(class->look, 0);
		now = clock_ns += pause_ns;
	}
	CHECK(class->ns > short_ns - short_ns / 50 && class->ns < short_ns + short_ns / 50);
	program_ns = &clock_ns;
}

static void test_contexts_in_turn(void)
{
	static struct vg_meter meter = {.pages = &pages};

	events_count = 0;
	for (int turn = 0; turn < turns; turn++) {
		uint64_t context = (uint64_t)(turn % contexts) + 1;

		for (uint64_t s = 0; s < streams_of_each; s++)
			launch(&meter, context, s, 1, work_ns);
		vg_meter_harvest(&meter, clock_ns);
	}
	CHECK(meter.base);
	CHECK(events_count > 0 && events_count <= contexts * streams_of_each * 2 * vg_ring + 2);
	for (uint64_t context = 1; context <= contexts; context++)
		for (uint64_t s = 0; s < streams_of_each; s++)
			vg_meter_drop_stream(&meter, stream_of(context, s));
	CHECK(events_count <= 2); // those that times are told from
}

// ---- launches of several threads

// enter has work of a class entered by a thread that has not launched it yet.
static struct vg_on_way *enter(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class)
{
	vg_meter_note_thread(meter);
	vg_meter_before(meter, stream, class, (int64_t)class->ns, clock_ns, false);
	return vg_on_way_begin(meter, stream);
}

// end has the driver get work.
static void end(struct vg_meter *meter, struct vg_stream *stream, struct vg_on_way *on_way)
{
	clock_ns += work_ns;
	if (vg_on_way_end(on_way))
		vg_meter_after(meter, stream, false, false);
}

// A segment that is to be closed waits for all work that was entered into it, and so is no
// measure of less than that work.
static void test_launching(void)
{
	static struct vg_meter meter = {.pages = &pages, .thread = 1};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_class_of(&meter.estimates, 1, work_ns / 20);
	struct vg_on_way *on_way[3];

	for (int i = 0; i < 3; i++)
		on_way[i] = enter(&meter, stream, class);
	CHECK(meter.shared && on_way[0]);
	CHECK_EQUAL(stream->head, 0);
	CHECK(!vg_meter_close(stream, false));
	for (int i = 0; i < 3; i++) {
		CHECK_EQUAL(stream->head, 0);
		end(&meter, stream, on_way[i]);
	}
	CHECK_EQUAL(stream->head, 1);
	vg_meter_harvest(&meter, clock_ns);
	CHECK(class->measured);
	CHECK(class->ns > work_ns - work_ns / 50 && class->ns < work_ns + work_ns / 50);
	CHECK(meter.owed > 2 * (int64_t)work_ns && meter.owed < 3 * (int64_t)work_ns);
}

// …but not for longer than a launch takes: nothing is learnt of it then.
static void test_launch_that_hangs(void)
{
	static struct vg_meter meter = {.pages = &pages, .thread = 1};
	const struct timespec pause = {.tv_nsec = 150000000};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_class_of(&meter.estimates, 1, work_ns / 20);
	struct vg_on_way *on_way = enter(&meter, stream, class);

	CHECK(!vg_meter_close(stream, false));
	nanosleep(&pause, NULL);
	CHECK(vg_meter_close(stream, false));
	vg_meter_harvest(&meter, clock_ns);
	CHECK(!class->measured);
	CHECK(!vg_on_way_end(on_way));
	CHECK_EQUAL(atomic_load(&on_way->count), 0);
}

// One thread's launches are not counted; a wait of another's tells nothing of those under way.
static void test_waits_beside_launches(void)
{
	static struct vg_meter meter = {.pages = &pages};
	CUstream handle = stream_of(1, 0);
	struct vg_stream *stream = vg_meter_stream(&meter, handle, 1, 0);
	struct vg_class *class = vg_class_of(&meter.estimates, 1, work_ns / 20);
	struct vg_on_way *on_way = enter(&meter, stream, class);

	CHECK(!on_way);
	vg_meter_waited(&meter, handle, 1, 0, clock_ns);
	CHECK(vg_stream_segment(stream)->dirty);
	CHECK(vg_meter_close(stream, false));
	meter.thread = 1; // another
	on_way = enter(&meter, stream, class);
	vg_meter_waited(&meter, handle, 1, 0, clock_ns);
	CHECK(!vg_stream_segment(stream)->dirty);
	end(&meter, stream, on_way);
}

// Work that is taken for next to nothing is measured all the same.
static void test_too_short(void)
{
	static struct vg_meter meter = {.pages = &pages};
	struct vg_class *class = vg_class_of(&meter.estimates, 1, 1);

	vg_class_observe(class, 1, 0, clock_ns);
	for (int i = 0; i < 3 * turns; i++)
		launch(&meter, 1, 0, 1, 1);
	vg_meter_harvest(&meter, clock_ns);
	CHECK(meter.settled > 0);
}

// ---- a meter that many want

enum { rounds = 20 };

static struct vg_meter wanted = {
	.mutex = {.rank = VG_RANK_METER}, .forgotten_mutex = {.rank = VG_RANK_FORGOTTEN},
};
static _Atomic bool taken;

static uint64_t real_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void hold(uint64_t ns)
{
	const struct timespec time = {.tv_nsec = (long)ns};

	CHECK(vg_meter_lock(&wanted, UINT64_C(10000000000)));
	atomic_store(&taken, true);
	nanosleep(&time, NULL);
	vg_meter_unlock(&wanted);
}

static void *hold_again(void *unused)
{
	for (int i = 0; i < rounds; i++)
		hold(40000000);
	return unused;
}

static void *hold_on(void *unused)
{
	hold(900000000);
	return unused;
}

// What ends while a meter is stuck in the driver is noted, however much it is, and waits at most
// once.
static void test_ends(void)
{
	enum { ends = 100 };
	static struct vg_stream other = {.used = true, .handle = (CUstream)0x7000};
	uint64_t began;
	pthread_t thread;

	atomic_store(&taken, false);
	CHECK_EQUAL(pthread_create(&thread, NULL, hold_on, NULL), 0);
	while (!atomic_load(&taken))
		continue;
	wanted.streams[0] = other; // whom the holder does not look at
	began = real_ns();
	for (uint64_t i = 0; i < ends; i++)
		vg_meter_forget(&wanted, vg_forget_stream, 0x1000 + i);
	CHECK(real_ns() - began < 300000000);
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
	CHECK(vg_meter_try_lock(&wanted));
	CHECK(!wanted.streams[0].used); // too much to be told one by one
	vg_meter_unlock(&wanted);
}

// As long as a meter goes from hand to hand, its turn is waited for; where one has it all the
// time, that one is held up in the driver.
static void test_turns(void *(*holder)(void *), bool gets_it)
{
	pthread_t thread;
	bool got;

	atomic_store(&taken, false);
	CHECK_EQUAL(pthread_create(&thread, NULL, holder, NULL), 0);
	while (!atomic_load(&taken))
		continue;
	got = vg_meter_lock_in_turn(&wanted, 150000000);
	if (got)
		vg_meter_unlock(&wanted);
	CHECK_EQUAL(got, gets_it);
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

static void test_cover_counts_time_once(void)
{
	struct vg_cover covers[vg_covers];
	uint32_t count = 0;

	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){10, 20}), 10);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){15, 25}), 5);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){40, 50}), 10);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){0, 60}), 35);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){0, 60}), 0);
	CHECK_EQUAL(count, 1);
	for (int i = 0; i < 1000; i++) {
		struct vg_cover next = {100 + i * 10, 105 + i * 10};

		CHECK_EQUAL(vg_cover_add(covers, &count, next), 5);
		CHECK(count <= vg_covers);
	}
}

int main(void)
{
	events_install(work_time, program_time);
	test_nothing_is_known();
	test_many_streams();
	test_short_work();
	test_contexts_in_turn();
	test_launching();
	test_launch_that_hangs();
	test_waits_beside_launches();
	test_too_short();
	test_turns(hold_again, true);
	test_turns(hold_on, false);
	test_ends();
	test_cover_counts_time_once();
	return 0;
}
