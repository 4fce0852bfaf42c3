// SPDX-License-Identifier: Apache-2.0

// This test covers streams and contexts that end before their work was measured.

#include "time/forget.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "events.h"
#include "meter_work.h"
#include "time/events.h"

enum { streams = 2 };

static uint64_t real_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t unmeasured_since(void)
{
	return usage.slots[0].devices[0].unmeasured_ns;
}

// Work of unknown length is measured even if its stream is destroyed. Until the measurement, the
// slot holds the time since which unmeasured work exists.
static void test_streams_that_are_gone(void)
{
	static struct vg_meter meter = {.pages = &pages};
	uint64_t before = clock_ns;
	int events = events_count;

	program_ns = &before;
	for (uint64_t key = 1; key <= streams; key++) {
		meter.owed += launch(&meter, 1, key, key, 50000);
		forget_stream(&meter, stream_of(1, key));
	}
	vg_events_read(&meter, clock_ns);
	CHECK_EQUAL(meter.unmeasured.count, streams);
	CHECK_EQUAL(unmeasured_since(), before);
	program_ns = &clock_ns;
	vg_events_read(&meter, clock_ns);
	vg_meter_drop_gone(&meter);
	CHECK(llabs(meter.owed - streams * (int64_t)work_ns) < 1000);
	CHECK_EQUAL(meter.unmeasured.count, 0);
	CHECK_EQUAL(unmeasured_since(), 0);
	CHECK(!meter.streams[0].used);
	vg_meter_drop_event(&meter.base);
	CHECK_EQUAL(events_count, events);
}

// Known work needs no measurement, so that its stream is dropped at once.
static void test_streams_of_known_work(void)
{
	static struct vg_meter meter = {.pages = &pages};
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, work_ns);

	vg_estimate_observe(class, work_ns, 0, clock_ns);
	launch(&meter, 1, 0, 1, work_ns);
	CHECK_EQUAL(unmeasured_since(), 0);
	forget_stream(&meter, stream_of(1, 0));
	CHECK(!meter.streams[0].used);
}

struct launching {
	struct vg_meter *meter;
	struct vg_on_way *on_way;
};

// end_launch ends a launch for which the end of the stream waits, like the thread that launches.
static void *end_launch(void *launching)
{
	struct vg_meter *meter = ((struct launching *)launching)->meter;
	struct vg_on_way *on_way = ((struct launching *)launching)->on_way;

	while (!atomic_load(&on_way->awaited))
		continue;
	clock_ns += work_ns;
	vg_meter_on_way_end(on_way);
	CHECK(vg_meter_lock(meter, 1000000000));
	vg_segment_after(meter, vg_meter_stream(meter, stream_of(1, 0), 1, 0), false);
	vg_meter_unlock(meter);
	return NULL;
}

// A thread may destroy a stream while another thread launches work of unknown length. The work is
// measured.
static void test_launch_beside_the_end(void)
{
	static struct vg_meter meter = {
		.pages = &pages,
		.mutex = {.rank = VG_RANK_METER},
	};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 50000);
	struct launching launching = {&meter, charge(&meter, stream, class)};
	pthread_t thread;

	CHECK_EQUAL(pthread_create(&thread, NULL, end_launch, &launching), 0);
	forget_stream(&meter, stream_of(1, 0));
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
	vg_events_read(&meter, clock_ns);
	CHECK(llabs(meter.owed - (int64_t)work_ns) < 1000);
	CHECK_EQUAL(meter.unmeasured.count, 0);
}

// The end of a stream does not wait for long, because a launch may wait for another thread. The work is
// charged all time since its launch.
static void test_launch_that_hangs(void)
{
	static struct vg_meter meter = {
		.pages = &pages,
		.mutex = {.rank = VG_RANK_METER},
	};
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 50000);
	uint64_t began = real_ns();

	charge(&meter, vg_meter_stream(&meter, stream_of(1, 0), 1, 0), class);
	forget_stream(&meter, stream_of(1, 0));
	CHECK(real_ns() - began >= vg_stuck_ns && real_ns() - began < 5 * vg_stuck_ns);
	vg_events_read(&meter, real_ns());
	CHECK(meter.owed >= vg_stuck_ns);
	CHECK_EQUAL(meter.unmeasured.count, 0);
}

// enter_unknown enters unfinished work of unknown length that is launched now.
static void enter_unknown(struct vg_meter *meter, uint64_t context, uint64_t key)
{
	struct vg_class *class = vg_estimate_of(&meter->estimates, key, 0);

	vg_segment_before(meter, vg_meter_stream(meter, stream_of(context, key), context, 0), class, 0,
			real_ns(), false);
}

// Work lost with its context is charged from its launch to the end of the context. Parallel work
// counts once.
static void test_contexts_that_are_gone(void)
{
	static const struct timespec pause = {.tv_nsec = 10000000};
	static struct vg_meter meter = {
		.pages = &pages,
		.mutex = {.rank = VG_RANK_METER},
	};
	uint64_t began = real_ns();
	int64_t owed;

	enter_unknown(&meter, 1, 1);
	enter_unknown(&meter, 1, 2);
	enter_unknown(&meter, 2, 3);
	CHECK_EQUAL(meter.unmeasured.count, 3);
	nanosleep(&pause, NULL);
	vg_forget(&meter, vg_end_context, 1);
	CHECK_EQUAL(meter.owed, 0);
	CHECK(unmeasured_since() >= began);
	nanosleep(&pause, NULL);
	vg_forget(&meter, vg_end_left, 1);
	owed = meter.owed;
	CHECK(owed >= 2 * pause.tv_nsec && (uint64_t)owed <= real_ns() - began);
	CHECK_EQUAL(meter.unmeasured.count, 1);
	nanosleep(&pause, NULL);
	vg_forget(&meter, vg_end_context, 2);
	vg_forget(&meter, vg_end_left, 2);
	CHECK(meter.owed >= owed + pause.tv_nsec && (uint64_t)meter.owed <= real_ns() - began);
	CHECK_EQUAL(unmeasured_since(), 0);
}

// If the end of a context fails, the context's work is measured as if no end had been tried.
static void test_contexts_that_live_on(void)
{
	static struct vg_meter meter = {
		.pages = &pages,
		.mutex = {.rank = VG_RANK_METER},
	};
	uint64_t before = clock_ns;

	program_ns = &before;
	meter.owed += launch(&meter, 1, 0, 1, 50000);
	vg_forget(&meter, vg_end_context, 1);
	program_ns = &clock_ns;
	vg_events_read(&meter, clock_ns);
	CHECK_EQUAL(meter.unmeasured.count, 1); // the driver is not queried meanwhile
	vg_forget(&meter, vg_end_kept, 1);
	vg_events_read(&meter, clock_ns);
	CHECK(llabs(meter.owed - (int64_t)work_ns) < 1000);
	CHECK_EQUAL(meter.unmeasured.count, 0);
	vg_meter_drop_gone(&meter);
	CHECK(meter.streams[0].used && vg_stream_is_empty(&meter.streams[0]));
}

// A thread may try to end a context while another thread's launch is in progress. If the end fails,
// the work is measured in full.
static void test_launch_beside_a_failed_end(void)
{
	static struct vg_meter meter = {
		.pages = &pages,
		.mutex = {.rank = VG_RANK_METER},
	};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 50000);
	struct vg_on_way *on_way = charge(&meter, stream, class);

	vg_forget(&meter, vg_end_context, 1);
	vg_forget(&meter, vg_end_kept, 1);
	CHECK_EQUAL(meter.unmeasured.count, 1);
	clock_ns += work_ns;
	vg_meter_on_way_end(on_way);
	vg_segment_after(&meter, vg_meter_stream(&meter, stream_of(1, 0), 1, 0), false);
	vg_events_read(&meter, clock_ns);
	CHECK_EQUAL(meter.unmeasured.count, 0);
	CHECK(llabs(meter.owed - (int64_t)work_ns) < 1000);
	CHECK(llabs((int64_t)class->ns - (int64_t)work_ns) < 1000);
}

// While a thread tries to end a context, only launches record events in the context's streams.
static void test_streams_of_an_ending_context(void)
{
	static struct vg_meter meter = {
		.pages = &pages,
		.mutex = {.rank = VG_RANK_METER},
	};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 50000);

	vg_estimate_observe(class, 50000, 0, clock_ns);
	vg_segment_before(&meter, stream, class, 50000, clock_ns, false);
	vg_forget(&meter, vg_end_context, 1);
	vg_segment_close_all(&meter, 1, 0, clock_ns);
	CHECK(stream->open);
	vg_forget(&meter, vg_end_kept, 1);
	vg_segment_close_all(&meter, 1, 0, clock_ns);
	CHECK(!stream->open);
}

// Known work of a destroyed stream, behind unknown work, causes no further query.
static void test_known_work_behind_unknown(void)
{
	static const uint64_t short_ns = 50000;
	static struct vg_meter meter = {
		.pages = &pages,
		.mutex = {.rank = VG_RANK_METER},
	};
	uint64_t before = clock_ns;

	vg_estimate_observe(vg_estimate_of(&meter.estimates, 2, short_ns), short_ns, 0, clock_ns);
	program_ns = &before;
	launch(&meter, 1, 0, 1, 50000);
	launch(&meter, 1, 0, 2, short_ns);
	CHECK(meter.streams[0].open);
	forget_stream(&meter, stream_of(1, 0));
	CHECK(meter.streams[0].gone && !meter.streams[0].open);
	program_ns = &clock_ns;
	vg_events_read(&meter, clock_ns);
	CHECK_EQUAL(meter.outstanding, 0);
	CHECK_EQUAL(meter.pieces, 0);
}

int main(void)
{
	events_install(work_time, program_time);
	test_streams_that_are_gone();
	test_streams_of_known_work();
	test_launch_beside_the_end();
	test_launch_that_hangs();
	test_contexts_that_are_gone();
	test_contexts_that_live_on();
	test_launch_beside_a_failed_end();
	test_streams_of_an_ending_context();
	test_known_work_behind_unknown();
	return 0;
}
