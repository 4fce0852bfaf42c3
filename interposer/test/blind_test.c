// SPDX-License-Identifier: Apache-2.0

// This test covers work on streams without events. The work is charged until the driver reports the
// work's end. If the driver does not report a stream's state, the stream keeps its last state. The
// simulated driver has two contexts, and reports on the default stream of the current context.

#include "time/meter.h"

#include "check.h"
#include "driver/handle.h"
#include "events.h"
#include "load/capture_count.h"
#include "pages/pages.h"
#include "stand_in.h"
#include "time/idle.h"
#include "time/segment.h"

enum { contexts = 3, begin_ns = 1000000000, work_ns = 1000000, late_ns = 20000000, error = 999 };

// the driver's state
static uint64_t current = 1;
static bool works[contexts]; // the default stream of a context has work
static CUresult query_fails, push_fails;
static int queries;

static const struct vg_pages pages = {.slot = vg_no_slot};
static struct vg_meter meter;

static uint64_t driver_time(void)
{
	return begin_ns;
}

static CUcontext context(uint64_t number)
{
	return (CUcontext)(uintptr_t)number;
}

static CUresult driver_query(CUstream stream)
{
	CHECK(!stream || stream == vg_legacy_stream || stream == vg_per_thread_stream);
	queries++;
	if (query_fails)
		return query_fails;
	return works[current] ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult driver_push(CUcontext its)
{
	if (push_fails)
		return push_fails;
	CHECK_EQUAL(current, 2);
	current = (uintptr_t)its;
	return CUDA_SUCCESS;
}

static CUresult driver_pop(CUcontext *its)
{
	*its = context(current);
	current = 2;
	return CUDA_SUCCESS;
}

static CUresult driver_current(CUcontext *its)
{
	*its = context(current);
	return CUDA_SUCCESS;
}

static uint64_t this_thread(void)
{
	return (uint64_t)(uintptr_t)__builtin_thread_pointer();
}

// begin launches known work of 1 ms in the first context, on a stream without events.
static void begin(CUstream handle, uint64_t thread)
{
	struct vg_class *class;
	struct vg_stream *stream;

	meter = (struct vg_meter){.pages = &pages};
	class = vg_estimate_of(&meter.estimates, 1, work_ns);
	stream = vg_meter_stream(&meter, handle, 1, thread);
	vg_estimate_observe(class, work_ns, work_ns, begin_ns);
	vg_meter_blind(&meter, stream);
	works[1] = true;
	current = 1;
	query_fails = push_fails = CUDA_SUCCESS;
	queries = 0;
	CHECK(!vg_segment_before(&meter, stream, class, work_ns, begin_ns, thread != 0));
	CHECK(!stream->ring[0].end);
	CHECK(meter.streams[0].open);
}

static void look(uint64_t after)
{
	uint64_t before = current;

	vg_idle_blind(&meter, current, begin_ns + after);
	CHECK_EQUAL(current, before);
}

// expect_charged checks that the work counts until the driver reports its end, and that the whole
// time is then charged.
static void expect_charged(void)
{
	look(late_ns / 2);
	look(late_ns);
	CHECK(meter.streams[0].open);
	CHECK_EQUAL(meter.owed, 0);
	works[1] = false;
	query_fails = push_fails = CUDA_SUCCESS;
	current = 1;
	look(late_ns + 1);
	CHECK(!meter.streams[0].open);
	CHECK_EQUAL(meter.owed, late_ns - work_ns);
}

static void test_told(void)
{
	begin(NULL, 0);
	expect_charged();
	CHECK_EQUAL(queries, 3);
	begin(NULL, 0); // known work that is done at the first check took its known time
	works[1] = false;
	look(late_ns);
	CHECK(!meter.streams[0].open);
	CHECK_EQUAL(meter.owed, 0);
}

static void test_query_fails(void)
{
	begin(NULL, 0);
	query_fails = error;
	expect_charged();
	CHECK_EQUAL(queries, 3);
}

// An exception in a kernel ends all work of the context, so that the work does not count as running.
static void test_exception(void)
{
	begin(NULL, 0);
	look(late_ns);
	query_fails = CUDA_ERROR_ILLEGAL_ADDRESS;
	look(late_ns + 1);
	CHECK(!meter.streams[0].open);
	CHECK_EQUAL(meter.owed, late_ns - work_ns);
}

// A launch that fails is not charged, unless other work is running.
static void test_failed_launch(void)
{
	begin(NULL, 0);
	vg_segment_failed(&meter, meter.last, 0, work_ns, false);
	CHECK(!meter.streams[0].open);
	look(late_ns);
	CHECK_EQUAL(meter.owed, -work_ns);
	CHECK_EQUAL(queries, 0);
	CHECK_EQUAL(meter.outstanding, 0);
}

// The time of work of unknown length is its whole time, and becomes the estimate.
static void test_unknown(void)
{
	struct vg_class *class;

	begin(NULL, 0);
	works[1] = false;
	look(late_ns);
	class = vg_estimate_of(&meter.estimates, 2, 0);
	vg_segment_before(&meter, meter.last, class, 0, begin_ns + late_ns, false);
	vg_segment_before(&meter, meter.last, class, 0, begin_ns + late_ns, false);
	CHECK_EQUAL(meter.unmeasured.count, 1);
	look(3 * late_ns);
	CHECK_EQUAL(meter.owed, 2 * late_ns);
	CHECK_EQUAL(class->ns, late_ns);
	CHECK_EQUAL(meter.unmeasured.count, 0);
}

// The state of work whose thread has ended cannot be queried. The work counts as done after a
// timeout.
static void test_ended_thread(void)
{
	enum { at_last_ns = 1100000000 };

	begin(NULL, 1); // no thread of this process
	look(late_ns);
	CHECK(meter.streams[0].open);
	look(at_last_ns);
	CHECK(!meter.streams[0].open);
	CHECK_EQUAL(meter.owed, late_ns - work_ns); // the time until the work counted as done
}

// After a program has waited for the stream, its work counts as done, whatever the driver reports.
static void test_waited(void)
{
	begin(NULL, 0);
	query_fails = error;
	look(late_ns);
	vg_idle_waited(&meter, NULL, 2, 0, begin_ns + late_ns); // the default stream of another context
	vg_idle_waited(&meter, vg_legacy_stream, 2, 0, begin_ns + late_ns);
	CHECK(meter.streams[0].open);
	vg_idle_waited(&meter, NULL, 1, 0, begin_ns + late_ns);
	CHECK(!meter.streams[0].open);
	CHECK_EQUAL(meter.owed, late_ns - work_ns);
}

// The second context's default stream is idle.
static void test_other_context(void)
{
	begin(NULL, 0);
	current = 2;
	expect_charged();
	CHECK_EQUAL(queries, 3);
	begin(vg_legacy_stream, 0);
	current = 2;
	expect_charged();
	begin(NULL, 0); // the query in the first context shows the end
	current = 2;
	look(late_ns / 2);
	works[1] = false;
	look(late_ns);
	CHECK(!meter.streams[0].open);
	CHECK_EQUAL(meter.owed, late_ns / 2 - work_ns);
}

static void test_context_that_cannot_be_entered(void)
{
	begin(NULL, 0);
	current = 2;
	push_fails = error;
	expect_charged();
	CHECK_EQUAL(queries, 1);
}

// Only the thread itself can query its default stream.
static void test_other_thread(void)
{
	begin(NULL, this_thread() + 16);
	for (uint64_t after = work_ns; after < late_ns; after += work_ns)
		look(after);
	CHECK(meter.streams[0].open);
	CHECK_EQUAL(queries, 0);
	vg_idle_waited(&meter, NULL, 1, this_thread() + 16, begin_ns + late_ns);
	CHECK(!meter.streams[0].open);
	CHECK_EQUAL(meter.owed, late_ns - 2 * work_ns); // until the last query
	begin(NULL, this_thread());
	expect_charged();
	CHECK_EQUAL(queries, 3);
}

// Beside a capture, the legacy stream is not queried.
static void test_capture(void)
{
	begin(NULL, 0);
	atomic_store(&vg_capture_count, 1);
	events_capturing = true;
	look(late_ns / 2);
	look(late_ns);
	CHECK(meter.streams[0].open);
	CHECK_EQUAL(queries, 0);
	events_capturing = false;
	atomic_store(&vg_capture_count, 0);
	expect_charged();
}

// Work that is done before its estimated end reduces the estimate.
static void test_estimate_that_is_too_high(void)
{
	begin(NULL, 0);
	works[1] = false;
	look(work_ns / 2);
	CHECK_EQUAL(meter.owed, -work_ns / 2);
	CHECK_EQUAL(vg_estimate_of(&meter.estimates, 1, 0)->ns, work_ns / 2);
}

int main(void)
{
	events_install(driver_time, driver_time);
	DRIVER(cuStreamQuery, driver_query);
	DRIVER(cuStreamQuery_ptsz, driver_query);
	DRIVER(cuCtxPushCurrent_v2, driver_push);
	DRIVER(cuCtxPopCurrent_v2, driver_pop);
	DRIVER(cuCtxGetCurrent, driver_current);
	test_told();
	test_estimate_that_is_too_high();
	test_query_fails();
	test_exception();
	test_failed_launch();
	test_unknown();
	test_ended_thread();
	test_waited();
	test_other_context();
	test_context_that_cannot_be_entered();
	test_other_thread();
	test_capture();
	return 0;
}
