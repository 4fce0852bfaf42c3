// SPDX-License-Identifier: Apache-2.0

// This test covers captures, and the interposer's own use of streams. The simulated driver has a
// legacy stream and blocking streams. During a capture of a blocking stream, the driver does not
// report the state of the legacy stream. No thread may touch the legacy stream during the capture.

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "driver/capture.h"
#include "check.h"
#include "fixture.h"
#include "memory/state.h"
#include "pages/pages.h"
#include "process.h"
#include "stand_in.h"

CUresult vg_cuStreamBeginCapture_v2(CUstream, int);
CUresult vg_cuStreamEndCapture(CUstream, CUgraph *);
CUresult vg_cuStreamDestroy_v2(CUstream);
CUresult vg_cuStreamWaitEvent(CUstream, CUevent, unsigned);

enum { streams = 4, rounds = 3000, joining = 4 };

static _Atomic int capturing[streams + 1]; // by stream; index 0 is the legacy stream
static _Atomic int touched;                // streams that are being touched
static _Atomic int refuse;                 // the driver's answer

static CUstream stream(int number)
{
	return number ? (CUstream)(uintptr_t)(0x1000 * number) : NULL;
}

static int number_of(CUstream made)
{
	return (int)((uintptr_t)made / 0x1000);
}

static int captures(void)
{
	int count = 0;

	for (int i = 1; i <= streams; i++)
		count += atomic_load(&capturing[i]);
	return count;
}

static CUresult driver_begin(CUstream on, int mode)
{
	(void)mode;
	if (refuse)
		return (CUresult)refuse;
	CHECK_EQUAL(atomic_load(&touched), 0);
	sched_yield(); // simulates a slow call
	CHECK_EQUAL(atomic_load(&touched), 0);
	atomic_store(&capturing[number_of(on)], 1);
	return CUDA_SUCCESS;
}

// driver_wait makes a stream wait for an event of a capture.
static CUresult driver_wait(CUstream on, CUevent event, unsigned flags)
{
	(void)event;
	CHECK_EQUAL(flags, 0);
	CHECK_EQUAL(atomic_load(&touched), 0);
	sched_yield();
	CHECK_EQUAL(atomic_load(&touched), 0);
	atomic_store(&capturing[number_of(on)], 1);
	return CUDA_SUCCESS;
}

static CUresult driver_end(CUstream on, CUgraph *graph)
{
	CHECK(graph);
	if (!refuse)
		atomic_store(&capturing[number_of(on)], 0);
	atomic_store(&capturing[joining], 0);
	return (CUresult)refuse;
}

static CUresult driver_destroy(CUstream on)
{
	if (!refuse)
		atomic_store(&capturing[number_of(on)], 0);
	return (CUresult)refuse;
}

// driver_asked returns an error, and a meaningless status, for the legacy stream during a capture.
static CUresult driver_asked(CUstream on, int *status)
{
	*status = atomic_load(&capturing[number_of(on)]);
	return !on && captures() ? (CUresult)906 : CUDA_SUCCESS;
}

static struct vg_state *begin(void)
{
	struct vg_limits_device device = test_device(1, UINT64_C(1) << 30);

	DRIVER(cuStreamBeginCapture_v2, driver_begin);
	DRIVER(cuStreamEndCapture, driver_end);
	DRIVER(cuStreamDestroy_v2, driver_destroy);
	DRIVER(cuStreamIsCapturing, driver_asked);
	DRIVER(cuStreamWaitEvent, driver_wait);
	return test_process(&device, 1);
}

static bool may_touch(int number)
{
	bool may = vg_capture_touch_begin(stream(number), false);

	if (may)
		vg_capture_touch_end();
	return may;
}

static unsigned open_captures(void)
{
	return atomic_load(&vg_capture_count);
}

// The count follows the captures, whichever way a capture ends.
static void test_count(void)
{
	CUgraph graph;

	CHECK_EQUAL(open_captures(), 0);
	CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(1), 0), CUDA_SUCCESS);
	CHECK_EQUAL(open_captures(), 1);
	CHECK(!may_touch(0) && !may_touch(1) && may_touch(2));
	refuse = 908; // of another thread
	CHECK_EQUAL(vg_cuStreamEndCapture(stream(1), &graph), 908);
	CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(2), 0), 908);
	CHECK_EQUAL(open_captures(), 1);
	CHECK_EQUAL(vg_cuStreamDestroy_v2(stream(1)), 908);
	CHECK_EQUAL(open_captures(), 1);
	refuse = 0;
	CHECK_EQUAL(vg_cuStreamEndCapture(stream(1), &graph), CUDA_SUCCESS);
	CHECK_EQUAL(open_captures(), 0);
	CHECK(may_touch(0) && may_touch(1));
	// The destruction of a stream ends its capture.
	CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(3), 0), CUDA_SUCCESS);
	CHECK_EQUAL(vg_cuStreamDestroy_v2(stream(3)), CUDA_SUCCESS);
	CHECK_EQUAL(open_captures(), 0);
	// An invalidated capture ends with an error.
	CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(1), 0), CUDA_SUCCESS);
	atomic_store(&capturing[1], 0);
	refuse = 901;
	CHECK_EQUAL(vg_cuStreamEndCapture(stream(1), &graph), 901);
	refuse = 0;
	CHECK_EQUAL(open_captures(), 0);
}

// Many captures of many streams are counted correctly. Unnoticed ends never lower the count.
static void test_many(void)
{
	enum { many = 200 };
	CUgraph graph;

	for (int i = 0; i < many; i++)
		CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(1 + i % streams), 0), CUDA_SUCCESS);
	CHECK(open_captures() >= streams);
	for (int i = 1; i <= streams; i++)
		CHECK_EQUAL(vg_cuStreamEndCapture(stream(i), &graph), CUDA_SUCCESS);
	for (int i = 1; i <= streams; i++)
		CHECK_EQUAL(vg_cuStreamDestroy_v2(stream(i)), CUDA_SUCCESS);
	CHECK_EQUAL(open_captures(), 0);
}

static void *capture(void *argument)
{
	CUstream mine = stream(1 + (int)(uintptr_t)argument);
	CUgraph graph;

	for (int i = 0; i < rounds; i++) {
		CHECK_EQUAL(vg_cuStreamBeginCapture_v2(mine, 0), CUDA_SUCCESS);
		sched_yield();
		CHECK_EQUAL(vg_cuStreamEndCapture(mine, &graph), CUDA_SUCCESS);
		sched_yield();
	}
	return NULL;
}

static _Atomic bool stop;
static _Atomic int touches;

static void *touch(void *argument)
{
	(void)argument;
	while (!stop) {
		if (!vg_capture_touch_begin(NULL, false)) {
			sched_yield();
			continue;
		}
		atomic_fetch_add(&touched, 1);
		CHECK_EQUAL(captures(), 0);
		sched_yield();
		CHECK_EQUAL(captures(), 0);
		atomic_fetch_sub(&touched, 1);
		touches++;
		vg_capture_touch_end();
	}
	return NULL;
}

// No capture begins while the interposer touches the legacy stream. The interposer does not touch
// the legacy stream during a capture.
static void test_threads(void)
{
	enum { capturers = 2, touchers = 2 };
	pthread_t threads[capturers + touchers];

	for (int i = 0; i < capturers + touchers; i++)
		CHECK(pthread_create(&threads[i], NULL, i < capturers ? capture : touch,
				     (void *)(uintptr_t)i) == 0);
	for (int i = 0; i < capturers; i++)
		pthread_join(threads[i], NULL);
	while (touches < rounds)
		sched_yield();
	stop = true;
	for (int i = capturers; i < capturers + touchers; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQUAL(open_captures(), 0);
}

static void *capture_and_join(void *unused)
{
	CUgraph graph;

	for (int i = 0; i < rounds; i++) {
		CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(1), 0), CUDA_SUCCESS);
		CHECK_EQUAL(vg_cuStreamWaitEvent(stream(joining), NULL, 0), CUDA_SUCCESS);
		CHECK_EQUAL(vg_cuStreamEndCapture(stream(1), &graph), CUDA_SUCCESS);
		sched_yield();
	}
	return unused;
}

// No stream joins a capture while the interposer touches the stream.
static void test_join(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, capture_and_join, NULL) == 0);
	for (touches = 0; touches < rounds;) {
		if (!vg_capture_touch_begin(stream(joining), false)) {
			sched_yield();
			continue;
		}
		atomic_fetch_add(&touched, 1);
		CHECK_EQUAL(atomic_load(&capturing[joining]), 0);
		sched_yield();
		CHECK_EQUAL(atomic_load(&capturing[joining]), 0);
		atomic_fetch_sub(&touched, 1);
		touches++;
		vg_capture_touch_end();
	}
	pthread_join(thread, NULL);
	CHECK_EQUAL(open_captures(), 0);
}

int main(void)
{
	begin();
	test_count();
	test_many();
	test_threads();
	test_join();
	return 0;
}
