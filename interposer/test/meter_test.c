// SPDX-License-Identifier: Apache-2.0

// This test covers the meter's charges for work of several streams. The meter creates no more
// events than the streams can have in progress. The simulated driver counts events. The driver's
// clock only runs while work runs.

#include "time/meter.h"

#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "events.h"
#include "pages/pages.h"
#include "time/events.h"
#include "time/forget.h"
#include "time/idle.h"
#include "time/segment.h"

enum { contexts = 2, streams_of_each = 2, turns = 1000 };

static const uint64_t work_ns = 1200000;

static uint64_t clock_ns = 1000000000; // less than the machine's uptime
static const uint64_t *program_ns = &clock_ns; // the program's time, which may be ahead of its work

// The agent reports that no other container uses the GPU.
static const struct vg_limits_page limits = {.others_looks = {UINT64_C(1) << VG_LEASE_PPM_BITS}};
static struct vg_usage_page usage;
static const struct vg_pages pages = {.limits = &limits, .usage = &usage};

static uint64_t real_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

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

static void forget_stream(struct vg_meter *meter, CUstream stream)
{
	vg_forget(meter, vg_end_stream, (uint64_t)(uintptr_t)stream);
}

// launch runs work of a class, and returns the charge.
static int64_t launch(struct vg_meter *meter, uint64_t context, uint64_t number, uint64_t key, uint64_t prior)
{
	struct vg_class *class = vg_estimate_of(&meter->estimates, key, prior);
	struct vg_stream *stream = vg_meter_stream(meter, stream_of(context, number), context, 0);
	int64_t charge = vg_meter_charge(meter, class);
	bool after;

	CHECK(stream);
	after = vg_segment_before(meter, stream, class, charge, clock_ns, false);
	clock_ns += work_ns;
	if (after)
		vg_segment_after(meter, stream, false);
	return charge;
}

// Work is charged its actual time, even if each piece is the first of its kind.
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
		vg_events_read(&meter, clock_ns);
	}
	charged += meter.owed;
	CHECK(charged > took - took / 50 && charged < took + took / 50);
}

// A program may have more streams than the meter records at a time.
static void test_many_streams(void)
{
	static struct vg_meter meter = {.pages = &pages};
	int64_t charged = 0;
	int64_t took = 0;

	events_count = 0;
	for (uint64_t s = 0; s < 4 * vg_meter_streams; s++) {
		charged += launch(&meter, 1, s, s + 1, work_ns / 20);
		took += (int64_t)work_ns;
		vg_events_read(&meter, clock_ns);
	}
	charged += meter.owed;
	CHECK(charged > took - took / 50 && charged < took + took / 50);
	CHECK(events_count <= vg_meter_streams * 2 + 2);
}

// If all recorded streams have unfinished work, the work of a further stream is still measured.
static void test_more_streams_than_records(void)
{
	static struct vg_meter meter = {.pages = &pages};
	uint64_t before = clock_ns;
	struct vg_class *class;

	vg_estimate_observe(vg_estimate_of(&meter.estimates, 1, work_ns), work_ns, 0, clock_ns);
	program_ns = &before;
	for (uint64_t s = 0; s < 2 * vg_meter_streams; s++)
		launch(&meter, 1, s / 2, 1, work_ns);
	launch(&meter, 1, vg_meter_streams, 2, work_ns / 20);
	CHECK_EQUAL(meter.unmeasured.count, 1);
	program_ns = &clock_ns;
	vg_events_read(&meter, clock_ns);
	class = vg_estimate_of(&meter.estimates, 2, 0);
	CHECK(class->measured && llabs((int64_t)class->ns - (int64_t)work_ns) < 1000);
	CHECK_EQUAL(meter.unmeasured.count, 0);
}

static void wait_ns(uint64_t ns)
{
	uint64_t from = vg_now();

	while (vg_now() - from < ns)
		continue;
}

// A piece of short work takes the same time alone as in a run. The measurement of a single piece
// includes a larger part of the launch. The meter must not treat the work as varying.
static void test_short_work(void)
{
	static struct vg_meter meter = {.pages = &pages};
	const uint64_t short_ns = 4000, launch_ns = 500, pause_ns = 1000000;
	CUstream handle = stream_of(1, 0);
	struct vg_stream *stream = vg_meter_stream(&meter, handle, 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 50000);
	uint64_t now = clock_ns;

	program_ns = &now;
	for (int turn = 0; turn < turns; turn++) {
		for (int i = turn % 2 ? 300 : 1; i > 0; i--) {
			bool after = vg_segment_before(&meter, stream, class, (int64_t)class->ns, now, false);

			wait_ns(launch_ns);
			now += launch_ns;
			clock_ns += short_ns;
			if (after)
				vg_segment_after(&meter, stream, false);
		}
		now = clock_ns;
		vg_events_read(&meter, now);
		vg_idle_waited(&meter, handle, 1, 0, now);
		CHECK_EQUAL(class->look, 0);
		now = clock_ns += pause_ns;
	}
	CHECK(class->ns > short_ns - short_ns / 50 && class->ns < short_ns + short_ns / 50);
	program_ns = &clock_ns;
}

// A program waits for a short piece and a long piece of a kind whose single pieces are short. The
// meter notices the long waits, and charges the actual time.
static void test_long_work_behind_short_work(void)
{
	static struct vg_meter meter = {.pages = &pages};
	const uint64_t short_ns = 50000, long_ns = 20000000, launch_ns = 3000, pause_ns = 1000000;
	CUstream handle = stream_of(1, 0);
	struct vg_stream *stream = vg_meter_stream(&meter, handle, 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 50000);
	uint64_t now = clock_ns;
	int64_t charged = 0, took = 0;

	vg_estimate_observe(class, short_ns, 0, now);
	program_ns = &now;
	for (int turn = 0; turn < turns; turn++) {
		for (int i = 0; i < 2; i++) {
			uint64_t ns = i ? long_ns : short_ns;

			charged += (int64_t)class->ns;
			if (vg_segment_before(&meter, stream, class, (int64_t)class->ns, now, false)) {
				clock_ns += ns;
				vg_segment_after(&meter, stream, false);
			} else {
				clock_ns += ns;
			}
			took += (int64_t)ns;
			now += launch_ns;
		}
		now = clock_ns;
		vg_events_read(&meter, now);
		vg_idle_waited(&meter, handle, 1, 0, now);
		now = clock_ns += pause_ns;
	}
	charged += meter.owed;
	CHECK(charged > took - took / 20 && charged < took + took / 20);
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
		vg_events_read(&meter, clock_ns);
	}
	CHECK(meter.base);
	CHECK(events_count > 0 && events_count <= contexts * streams_of_each * 2 * vg_ring + 2);
	for (uint64_t context = 1; context <= contexts; context++)
		for (uint64_t s = 0; s < streams_of_each; s++)
			forget_stream(&meter, stream_of(context, s));
	CHECK(events_count <= 2); // events used for timing
}

// ---- launches of several threads

// enter enters work of a class for a thread that has not launched the work yet.
static struct vg_on_way *enter(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class)
{
	vg_segment_before(meter, stream, class, (int64_t)class->ns, clock_ns, false);
	return vg_meter_on_way_begin(stream);
}

// end passes the work to the driver.
static void end(struct vg_meter *meter, struct vg_stream *stream, struct vg_on_way *on_way)
{
	clock_ns += work_ns;
	if (vg_meter_on_way_end(on_way))
		vg_segment_after(meter, stream, false);
}

// A segment that closes waits for all entered work, so that its measurement covers all this work.
static void test_launching(void)
{
	static struct vg_meter meter = {.pages = &pages};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, work_ns / 20);
	struct vg_on_way *on_way[3];

	for (int i = 0; i < 3; i++)
		on_way[i] = enter(&meter, stream, class);
	CHECK_EQUAL(stream->head, 0);
	CHECK(!vg_segment_close(stream, false));
	for (int i = 0; i < 3; i++) {
		CHECK_EQUAL(stream->head, 0);
		end(&meter, stream, on_way[i]);
	}
	CHECK_EQUAL(stream->head, 1);
	vg_events_read(&meter, clock_ns);
	CHECK(class->measured);
	CHECK(class->ns > work_ns - work_ns / 50 && class->ns < work_ns + work_ns / 50);
	CHECK(meter.owed > 2 * (int64_t)work_ns && meter.owed < 3 * (int64_t)work_ns);
}

// charge enters work of a class, and charges the work.
static struct vg_on_way *charge(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class)
{
	meter->owed += (int64_t)class->ns;
	return enter(meter, stream, class);
}

// A launch that fails is refunded once, and does not prevent the measurement of its segment. Another
// thread may have closed the segment meanwhile.
static void test_failed_launches(void)
{
	for (int closed = 0; closed < 2; closed++) {
		struct vg_meter *meter = calloc(1, sizeof *meter);
		struct vg_stream *stream;
		struct vg_class *class;
		struct vg_on_way *good, *failed;
		int64_t prior = (int64_t)work_ns / 20;

		CHECK(meter);
		meter->pages = &pages;
		stream = vg_meter_stream(meter, stream_of(1, 0), 1, 0);
		class = vg_estimate_of(&meter->estimates, 1, (uint64_t)prior);
		good = charge(meter, stream, class);
		failed = charge(meter, stream, class);
		clock_ns += work_ns;
		vg_meter_on_way_end(good);
		vg_meter_on_way_end(failed);
		if (closed)
			CHECK(vg_segment_close(stream, false));
		vg_segment_failed(meter, stream, 0, prior, true);
		CHECK_EQUAL(meter->owed, prior);
		CHECK_EQUAL(meter->outstanding, prior);
		CHECK_EQUAL(meter->pieces, 1);
		vg_segment_after(meter, stream, false);
		vg_events_read(meter, clock_ns);
		CHECK(llabs(meter->owed - (int64_t)work_ns) < 1000);
		CHECK(class->measured && llabs((int64_t)class->ns - (int64_t)work_ns) < 1000);
		vg_segment_failed(meter, stream, 0, prior, true); // too late
		CHECK(llabs(meter->owed - (int64_t)work_ns) < 1000);
		CHECK_EQUAL(meter->outstanding, 0);
		free(meter);
	}
}

// A segment without a successful launch ends at once, and delays no other launch.
static void test_only_failed_launches(void)
{
	static struct vg_meter meter = {.pages = &pages};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, work_ns / 20);
	struct vg_on_way *on_way = charge(&meter, stream, class);

	vg_meter_on_way_end(on_way);
	vg_segment_failed(&meter, stream, 0, (int64_t)class->ns, true);
	CHECK(!stream->open);
	CHECK_EQUAL(class->opened, 0);
	CHECK_EQUAL(meter.owed, 0);
	CHECK_EQUAL(meter.outstanding, 0);
	CHECK_EQUAL(meter.unmeasured.count, 0);
}

// The segment waits no longer than vg_stuck_ns. Afterwards, the segment is not measured.
static void test_launch_that_hangs(void)
{
	static struct vg_meter meter = {.pages = &pages};
	const struct timespec pause = {.tv_nsec = 150000000};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, work_ns / 20);
	struct vg_on_way *on_way = enter(&meter, stream, class);

	CHECK(!vg_segment_close(stream, false));
	nanosleep(&pause, NULL);
	CHECK(vg_segment_close(stream, false));
	vg_events_read(&meter, clock_ns);
	CHECK(!class->measured);
	CHECK(!vg_meter_on_way_end(on_way));
	CHECK_EQUAL(atomic_load(&on_way->count), 0);
}

// A wait of another thread does not show that a launch in progress is done.
static void test_waits_beside_launches(void)
{
	static struct vg_meter meter = {.pages = &pages};
	CUstream handle = stream_of(1, 0);
	struct vg_stream *stream = vg_meter_stream(&meter, handle, 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, work_ns / 20);
	struct vg_on_way *on_way = enter(&meter, stream, class);

	vg_idle_waited(&meter, handle, 1, 0, clock_ns);
	CHECK(stream->open && !vg_stream_segment(stream)->dirty);
	end(&meter, stream, on_way);
	vg_idle_waited(&meter, handle, 1, 0, clock_ns);
	CHECK(!stream->open || vg_stream_segment(stream)->dirty); // the stream's work is done
}

// Work with an estimate near zero is still measured.
static void test_too_short(void)
{
	static struct vg_meter meter = {.pages = &pages};
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 1);

	vg_estimate_observe(class, 1, 0, clock_ns);
	for (int i = 0; i < 3 * turns; i++)
		launch(&meter, 1, 0, 1, 1);
	vg_events_read(&meter, clock_ns);
	CHECK(meter.settled > 0);
}

// ---- streams and contexts that end before their work was measured

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
	for (uint64_t key = 1; key <= streams_of_each; key++) {
		meter.owed += launch(&meter, 1, key, key, 50000);
		forget_stream(&meter, stream_of(1, key));
	}
	vg_events_read(&meter, clock_ns);
	CHECK_EQUAL(meter.unmeasured.count, streams_of_each);
	CHECK_EQUAL(unmeasured_since(), before);
	program_ns = &clock_ns;
	vg_events_read(&meter, clock_ns);
	vg_meter_drop_gone(&meter);
	CHECK(llabs(meter.owed - streams_of_each * (int64_t)work_ns) < 1000);
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
	test_more_streams_than_records();
	test_short_work();
	test_long_work_behind_short_work();
	test_contexts_in_turn();
	test_launching();
	test_failed_launches();
	test_only_failed_launches();
	test_launch_that_hangs();
	test_waits_beside_launches();
	test_too_short();
	test_streams_that_are_gone();
	test_streams_of_known_work();
	test_contexts_that_are_gone();
	test_contexts_that_live_on();
	test_launch_beside_a_failed_end();
	test_streams_of_an_ending_context();
	test_known_work_behind_unknown();
	test_cover_counts_time_once();
	return 0;
}
