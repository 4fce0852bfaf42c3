// SPDX-License-Identifier: Apache-2.0

// This test covers the meter's charges for work of several streams. The meter creates no more
// events than the streams can have in progress. The simulated driver counts events.

#include "time/meter.h"

#include <stdlib.h>
#include <time.h>

#include "check.h"
#include "events.h"
#include "meter_work.h"
#include "stand_in.h"
#include "time/events.h"
#include "time/idle.h"

enum { contexts = 2, streams_of_each = 2, turns = 1000 };

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
	check_near(charged + meter.owed, took, 50);
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
	check_near(charged + meter.owed, took, 50);
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

// wait_for_work advances the program's time to the end of a stream's work.
static void wait_for_work(struct vg_meter *meter, CUstream stream, uint64_t *now)
{
	*now = clock_ns;
	vg_events_read(meter, *now);
	vg_idle_waited(meter, stream, 1, 0, *now);
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
		wait_for_work(&meter, handle, &now);
		CHECK_EQUAL(class->look, 0);
		now = clock_ns += pause_ns;
	}
	check_near((int64_t)class->ns, (int64_t)short_ns, 50);
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
			run(&meter, stream, class, (int64_t)class->ns, now, ns);
			took += (int64_t)ns;
			now += launch_ns;
		}
		wait_for_work(&meter, handle, &now);
		now = clock_ns += pause_ns;
	}
	check_near(charged + meter.owed, took, 20);
	program_ns = &clock_ns;
}

// A program waits for each piece of work, on a GPU that no other process uses. After a long time, the
// GPU's clock begins to vary. The first pieces of the next sample show the change. The meter then
// charges the actual time.
static void test_clock_that_varies(void)
{
	static struct vg_meter meter = {.pages = &pages};
	const uint64_t launch_ns = 3000, phase_ns = 500000000, constant_ns = 5000000000;
	CUstream handle = stream_of(1, 0);
	struct vg_stream *stream = vg_meter_stream(&meter, handle, 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, 50000);
	uint64_t begin = clock_ns;
	uint64_t now = begin;
	int64_t charged = 0, took = 0;

	program_ns = &now;
	while (clock_ns - begin < 2 * constant_ns) {
		bool varies = clock_ns - begin >= constant_ns;
		uint64_t ns = varies && (clock_ns - begin) / phase_ns % 2 == 0 ? 286000 : 154000;

		if (!varies)
			charged = took = meter.owed = 0;
		charged += (int64_t)class->ns;
		took += (int64_t)ns;
		run(&meter, stream, class, (int64_t)class->ns, now, ns);
		wait_for_work(&meter, handle, &now);
		now = clock_ns += launch_ns + ns * 7 / 3;
	}
	check_near(charged + meter.owed, took, 50);
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
	check_near((int64_t)class->ns, (int64_t)work_ns, 50);
	CHECK(meter.owed > 2 * (int64_t)work_ns && meter.owed < 3 * (int64_t)work_ns);
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

// The segment waits no longer than vg_stuck_ns. Afterwards, the segment is not measured, and its work
// of unknown length is charged all time since the launch.
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
	vg_events_read(&meter, vg_now());
	CHECK(!class->measured);
	CHECK(meter.owed >= pause.tv_nsec - (int64_t)class->ns);
	CHECK(!vg_meter_on_way_end(on_way));
	CHECK_EQUAL(atomic_load(&on_way->count), 0);
}

static CUresult stream_is_idle(CUstream stream)
{
	CHECK(stream);
	return CUDA_SUCCESS;
}

// If a thread cannot lock the meter after its launch of unknown length, the next launch records the
// event. The charge is at least the length.
static void test_launch_beside_a_stuck_meter(void)
{
	static struct vg_meter meter = {.pages = &pages};
	struct vg_stream *stream = vg_meter_stream(&meter, stream_of(1, 0), 1, 0);
	struct vg_class *class = vg_estimate_of(&meter.estimates, 1, work_ns / 20);

	DRIVER(cuStreamQuery, stream_is_idle);
	vg_estimate_observe(vg_estimate_of(&meter.estimates, 2, 0), work_ns, 0, clock_ns);
	CHECK(!vg_meter_on_way_end(charge(&meter, stream, class)));
	clock_ns += 10 * work_ns;
	launch(&meter, 1, 0, 2, 0);
	vg_events_read(&meter, clock_ns);
	CHECK(meter.owed >= 10 * (int64_t)work_ns);
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
	test_clock_that_varies();
	test_contexts_in_turn();
	test_launching();
	test_failed_launches();
	test_only_failed_launches();
	test_launch_beside_a_stuck_meter();
	test_launch_that_hangs();
	test_waits_beside_launches();
	test_too_short();
	test_cover_counts_time_once();
	return 0;
}
