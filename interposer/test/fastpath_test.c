// SPDX-License-Identifier: Apache-2.0

// This test covers the fast path. A launch on the fast path is recorded once, with the same work
// and stream as in the throttle. Any change of the conditions ends the fast path. The simulated
// driver has a GPU with two contexts, and runs equally long work items one after another.

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/now.h"
#include "check.h"
#include "driver/handle.h"
#include "events.h"
#include "fixture.h"
#include "process.h"
#include "stand_in.h"
#include "time/meter.h"

enum { kernel_ns = 12000, burst = 50, many = 2000, threads = 4 };

static struct vg_state *state;

// the driver's state
static _Atomic uint64_t busy_until;
static _Thread_local CUcontext current;
static CUresult fails; // the error of each launch

static CUstream stream(int number)
{
	return (CUstream)(uintptr_t)(0x2000 + 16 * number);
}

static CUcontext context(int number)
{
	return (CUcontext)(uintptr_t)(0x1000 * (number + 1));
}

static CUfunction function(int number)
{
	return (CUfunction)(uintptr_t)(0x50000 + 16 * number);
}

static uint64_t reached(void)
{
	uint64_t now = vg_now();
	uint64_t until = atomic_load(&busy_until);

	return until > now ? until : now;
}

static CUresult driver_launch(CUfunction which, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			      unsigned by, unsigned bz, unsigned shared, CUstream on, void **parameters,
			      void **extra)
{
	uint64_t until = atomic_load(&busy_until);

	CHECK(which && gx && gy && gz && bx && by && bz && !shared && !parameters && !extra);
	(void)on;
	if (fails)
		return fails;
	while (!atomic_compare_exchange_weak(&busy_until, &until, (until > vg_now() ? until : vg_now()) + kernel_ns))
		continue;
	return CUDA_SUCCESS;
}

static CUresult driver_is_dry(CUstream on)
{
	(void)on;
	return atomic_load(&busy_until) <= vg_now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult driver_wait(CUstream on)
{
	while (driver_is_dry(on))
		continue;
	return CUDA_SUCCESS;
}

static CUresult driver_context(CUstream on, CUcontext *its)
{
	CHECK(on);
	*its = context(0);
	return CUDA_SUCCESS;
}

static CUresult driver_push(CUcontext its)
{
	CHECK(its);
	return CUDA_SUCCESS;
}

static CUresult driver_pop(CUcontext *its)
{
	*its = current;
	return CUDA_SUCCESS;
}

static CUresult driver_current(CUcontext *its)
{
	*its = current;
	return CUDA_SUCCESS;
}

static CUresult driver_device(CUdevice *its)
{
	*its = 0;
	return CUDA_SUCCESS;
}

static CUresult driver_destroy(CUstream on)
{
	CHECK(on);
	return CUDA_SUCCESS;
}

static void install(void)
{
	events_install(reached, vg_now);
	DRIVER(cuLaunchKernel, driver_launch);
	DRIVER(cuLaunchKernel_ptsz, driver_launch);
	DRIVER(cuStreamGetCtx, driver_context);
	DRIVER(cuCtxPushCurrent_v2, driver_push);
	DRIVER(cuCtxPopCurrent_v2, driver_pop);
	DRIVER(cuCtxGetCurrent, driver_current);
	DRIVER(cuCtxGetDevice, driver_device);
	DRIVER(cuStreamDestroy_v2, driver_destroy);
	DRIVER(cuStreamQuery, driver_is_dry);
	DRIVER(cuStreamQuery_ptsz, driver_is_dry);
	DRIVER(cuStreamSynchronize, driver_wait);
}

static void begin(void)
{
	struct vg_limits_device device = test_device(1, UINT64_C(1) << 30);

	device.compute_ppm = 990000;
	state = test_process(&device, 1);
	current = context(0);
}

// The library defines these functions, which a program calls.
CUresult vg_cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   CUstream, void **, void **);
CUresult vg_cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
				unsigned, CUstream, void **, void **);
CUresult vg_cuStreamDestroy_v2(CUstream);
CUresult vg_cuStreamBeginCapture_v2(CUstream, int);
CUresult vg_cuStreamSynchronize(CUstream);

static void launch(int which, CUstream on)
{
	CHECK_EQUAL(vg_cuLaunchKernel(function(which), 1, 1, 1, 1, 1, 1, 0, on, NULL, NULL), fails);
}

static void launch_own(int which)
{
	CHECK_EQUAL(vg_cuLaunchKernel_ptsz(function(which), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), fails);
}

static struct vg_meter *meter(void)
{
	return atomic_load(&state->meters[0]);
}

static const struct vg_slot_device *slot(void)
{
	return vg_slot_device(&state->pages, (uint32_t)state->pages.slot, 0);
}

static bool allowed(void)
{
	return meter() && meter()->fastpath.room >= meter()->fastpath.ns && meter()->fastpath.key;
}

// went_by reports whether a launch since `last` used only the fast path.
static bool went_by(const struct vg_fastpath *last)
{
	return meter()->fastpath.until == last->until && meter()->fastpath.room == last->room - last->ns;
}

// check_sums checks that the meter's sums of unfinished work equal the sums of the streams.
static void check_sums(void)
{
	int64_t charged = 0;

	for (size_t i = 0; i < vg_meter_streams; i++) {
		const struct vg_stream *one = &meter()->streams[i];
		uint32_t last = one->head + (one->open ? 1 : 0);

		for (uint32_t s = one->tail; one->used && s != last; s++)
			charged += one->ring[s % vg_ring].charged;
	}
	CHECK_EQUAL(meter()->outstanding, charged);
}

// fastpath launches the same work until the fast path allows a further launch. The first charge may
// be unknown, and the last launch before an event has no fast path.
static void fastpath(int which, CUstream on)
{
	for (int i = 0; i < many; i++) {
		if (i % burst == 0)
			driver_wait(on);
		launch(which, on);
		if (allowed() && meter()->fastpath.stream->handle == on)
			return;
	}
	CHECK(!"the fast path is never allowed");
}

static uint64_t idle_at(CUstream on, uint64_t its, uint64_t thread)
{
	return vg_meter_stream(meter(), on, its, thread)->idle_at;
}

// Most repeated work uses the fast path, and all repeated work is counted and charged.
static void test_goes_by(void)
{
	uint64_t before;
	int by = 0;

	fastpath(1, stream(1));
	before = slot()->launches;
	for (int i = 0; i < many; i++) {
		struct vg_fastpath last = meter()->fastpath;
		uint64_t idle = last.stream->idle_at;
		bool may = allowed();

		if (i % burst == 0)
			driver_wait(stream(1));
		launch(1, stream(1));
		if (may && went_by(&last)) {
			CHECK_EQUAL(last.stream->idle_at, idle + (uint64_t)last.ns);
			by++;
		}
		if (i % burst == burst - 1)
			check_sums();
	}
	CHECK_EQUAL(slot()->launches, before + many);
	CHECK(by > many / 4);
}

// Work in another stream, context or function does not use the fast path.
static void test_is_for_its_own(void)
{
	struct vg_fastpath last;
	uint64_t idle;

	fastpath(1, stream(1));
	idle = idle_at(stream(1), vg_handle_key(context(0)), 0);
	launch(1, stream(2));
	CHECK_EQUAL(idle_at(stream(1), vg_handle_key(context(0)), 0), idle);

	fastpath(1, stream(1));
	last = meter()->fastpath;
	launch(2, stream(1));
	CHECK(!went_by(&last));
	check_sums();

	fastpath(1, NULL);
	idle = idle_at(NULL, vg_handle_key(context(0)), 0);
	current = context(1);
	launch(1, NULL);
	current = context(0);
	CHECK_EQUAL(idle_at(NULL, vg_handle_key(context(0)), 0), idle);
	CHECK(idle_at(NULL, vg_handle_key(context(1)), 0) > 0);

	fastpath(1, NULL);
	idle = idle_at(NULL, vg_handle_key(context(0)), 0);
	launch_own(1);
	CHECK_EQUAL(idle_at(NULL, vg_handle_key(context(0)), 0), idle);
	check_sums();
}

static void test_ends(void)
{
	fastpath(1, stream(1));
	CHECK_EQUAL(vg_cuStreamSynchronize(stream(1)), CUDA_SUCCESS);
	CHECK(!allowed());
	fastpath(1, stream(1));
	CHECK_EQUAL(vg_cuStreamDestroy_v2(stream(1)), CUDA_SUCCESS);
	CHECK(!allowed());
	fastpath(1, stream(1));
	meter()->fastpath.until = 0;
	launch(1, stream(1));
	CHECK(meter()->fastpath.until || !allowed());
}

// A launch that fails is not charged.
static void test_failure(void)
{
	int64_t owed;

	fastpath(1, stream(1));
	owed = meter()->owed;
	fails = CUDA_ERROR_OUT_OF_MEMORY;
	launch(1, stream(1));
	fails = CUDA_SUCCESS;
	CHECK_EQUAL(meter()->owed, owed);
	CHECK(!allowed());
	check_sums();
}

// Captured work does not run.
static void test_capture(void)
{
	uint64_t launches;

	fastpath(1, stream(1));
	launches = slot()->launches;
	CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(1), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
	for (int i = 0; i < burst; i++)
		launch(1, stream(1));
	CHECK_EQUAL(slot()->launches, launches);
	events_capturing = false;
	launch(1, stream(1));
	CHECK_EQUAL(slot()->launches, launches + 1);
	check_sums();
}

// While the program pauses, its stream is idle, and the pause does not count as work.
static void test_pauses(void)
{
	const struct timespec pause = {.tv_nsec = 3000000};
	const struct vg_segment *segment;
	int64_t idle;

	fastpath(1, stream(1));
	meter()->fastpath.until = UINT64_MAX;
	segment = vg_stream_segment(meter()->fastpath.stream);
	idle = segment->idle;
	nanosleep(&pause, NULL);
	launch(1, stream(1));
	CHECK(segment->idle - idle > pause.tv_nsec / 2);
	CHECK(idle_at(stream(1), vg_handle_key(context(0)), 0) + (uint64_t)pause.tv_nsec / 2 > vg_now());
}

static void *launcher(void *number)
{
	CUstream on = stream(10 + (int)(uintptr_t)number / 2); // two threads on each stream

	current = context(0);
	for (int i = 0; i < many; i++) {
		launch(1 + (int)(uintptr_t)number % 2, on);
		if (i % burst == 0)
			CHECK_EQUAL(vg_cuStreamSynchronize(on), CUDA_SUCCESS);
	}
	return NULL;
}

static void test_threads(void)
{
	uint64_t before = slot()->launches;
	pthread_t running[threads];

	for (uintptr_t i = 0; i < threads; i++)
		CHECK_EQUAL(pthread_create(&running[i], NULL, launcher, (void *)i), 0);
	for (int i = 0; i < threads; i++)
		pthread_join(running[i], NULL);
	CHECK_EQUAL(slot()->launches - before, threads * many);
	check_sums();
	for (int i = 0; i < vg_on_ways; i++)
		CHECK_EQUAL(atomic_load(&meter()->on_way[i].count), 0);
}

int main(void)
{
	install();
	begin();
	test_goes_by();
	test_is_for_its_own();
	test_ends();
	test_failure();
	test_pauses();
	test_capture();
	test_threads();
	free(meter());
	return 0;
}
