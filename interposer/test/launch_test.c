// SPDX-License-Identifier: Apache-2.0

// This test covers a launch's queries to the driver and the device of the launch's charge. The test
// also covers the time at which debts are charged to the bucket. The simulated driver has two GPUs,
// a context on each GPU, and streams that the test assigns to GPUs.

#include <string.h>

#include "base/now.h"
#include "base/number.h"
#include "base/sleep.h"
#include "check.h"
#include "events.h"
#include "fixture.h"
#include "load/capture_count.h"
#include "process.h"
#include "stand_in.h"
#include "time/meter.h"
#include "time/segment.h"
#include "time/throttle.h"

enum { gpus = 2, many = 1000, least_post = 20000, late_ns = 20000000 };

static struct vg_state *state;

// the driver's state
static int gpu_of[16];   // by stream
static CUcontext current;
static int asked_context, asked_work; // numbers of queries
static CUresult context_fails, capturing_fails;
static uint64_t capture_id = 1;
static uint64_t gpu_until; // end of the GPU's work

// another_thread stands for another thread's calls just before a launch that is to be captured, and
// just after the launch.
static enum { does_nothing, ends_the_capture, captures_again, closes_the_segment } another_thread;

static uint64_t driver_time(void)
{
	return vg_max(gpu_until, vg_now());
}

static CUstream stream(int number)
{
	return (CUstream)(uintptr_t)(0x2000 + 16 * number);
}

static int number_of(CUstream made)
{
	return (int)(((uintptr_t)made - 0x2000) / 16);
}

static CUcontext context(int gpu)
{
	return (CUcontext)(uintptr_t)(0x1000 * (gpu + 1));
}

// close_segment closes the stream's segment, and reads the events, like another thread that launches.
static void close_segment(int number)
{
	struct vg_meter *meter = atomic_load(&state->meters[0]);

	CHECK(vg_meter_try_lock(meter));
	vg_segment_close(vg_meter_stream(meter, stream(number), (uint64_t)(uintptr_t)context(0), 0), false);
	vg_throttle_waited(state, meter);
	vg_meter_unlock(meter);
}

static CUresult driver_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			      unsigned by, unsigned bz, unsigned shared, CUstream on, void **parameters,
			      void **extra)
{
	CHECK(function && gx && gy && gz && bx && by && bz && !shared && on && !parameters && !extra);
	if (another_thread == closes_the_segment) {
		close_segment(7);
		vg_sleep_until(vg_now() + vg_stuck_ns);
		close_segment(7);
		vg_sleep_until(vg_now() + vg_stuck_ns);
	} else if (another_thread != does_nothing) {
		gpu_until = vg_now() + late_ns;
		events_capturing = another_thread == captures_again;
		capture_id++;
	}
	return CUDA_SUCCESS;
}

static CUresult driver_context(CUstream on, CUcontext *its)
{
	asked_context++;
	*its = context(gpu_of[number_of(on)]);
	return context_fails;
}

static CUresult driver_push(CUcontext its)
{
	current = its;
	return CUDA_SUCCESS;
}

static CUresult driver_pop(CUcontext *its)
{
	*its = current;
	current = NULL;
	return CUDA_SUCCESS;
}

static CUresult driver_current(CUcontext *its)
{
	*its = current;
	return CUDA_SUCCESS;
}

static CUresult driver_device(CUdevice *its)
{
	CHECK(current);
	*its = current == context(1);
	return CUDA_SUCCESS;
}

// The driver's output after a failure is meaningless.
static CUresult driver_is_capturing(CUstream on, int *status)
{
	CHECK(on);
	events_asked_capture++;
	*status = events_capturing;
	return capturing_fails;
}

static CUresult driver_capture_info(CUstream on, int *status, uint64_t *id)
{
	CHECK(on);
	*status = events_capturing;
	*id = capture_id;
	return capturing_fails;
}

static CUresult driver_destroy_stream(CUstream on)
{
	CHECK(on);
	return CUDA_SUCCESS;
}

static CUresult driver_is_dry(CUstream on)
{
	CHECK(on);
	asked_work++;
	return CUDA_SUCCESS;
}

static void driver_later(void) // a function unknown to the interposer
{
}

static CUresult driver_address(const char *name, void **function, int version, uint64_t flags, int *status)
{
	void (*later)(void) = driver_later;

	CHECK(name && !version && !flags && !status);
	memcpy(function, &later, sizeof later);
	return CUDA_SUCCESS;
}

static void install(void)
{
	events_install(driver_time, vg_now);
	DRIVER(cuLaunchKernel, driver_launch);
	DRIVER(cuStreamGetCtx, driver_context);
	DRIVER(cuCtxPushCurrent_v2, driver_push);
	DRIVER(cuCtxPopCurrent_v2, driver_pop);
	DRIVER(cuCtxGetCurrent, driver_current);
	DRIVER(cuCtxGetDevice, driver_device);
	DRIVER(cuStreamDestroy_v2, driver_destroy_stream);
	DRIVER(cuStreamIsCapturing, driver_is_capturing);
	DRIVER(cuStreamGetCaptureInfo, driver_capture_info);
	DRIVER(cuStreamQuery, driver_is_dry);
	DRIVER(cuGetProcAddress_v2, driver_address);
}

static void begin(void)
{
	struct vg_limits_device devices[gpus];

	for (int i = 0; i < gpus; i++) {
		devices[i] = test_device((uint8_t)(i + 1), UINT64_C(1) << 30);
		devices[i].compute_ppm = 990000;
	}
	state = test_process(devices, gpus);
}

// The library defines these functions, which a program calls.
CUresult vg_cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   CUstream, void **, void **);
CUresult vg_cuStreamDestroy_v2(CUstream);
CUresult vg_cuStreamBeginCapture_v2(CUstream, int);
CUresult vg_cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

static void launch_kind(uintptr_t kind, int number)
{
	CUfunction kernel = (CUfunction)kind;

	CHECK_EQUAL(vg_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream(number), NULL, NULL), CUDA_SUCCESS);
}

static void launch(int number)
{
	launch_kind(0x5000, number);
}

static const struct vg_slot_device *slot(uint32_t gpu)
{
	return vg_slot_device(&state->pages, (uint32_t)state->pages.slot, gpu);
}

// The interposer asks the driver for a stream's context when the stream changes.
static void test_one_stream(void)
{
	uint64_t before = slot(0)->launches;

	launch(1);
	asked_context = 0;
	for (int i = 0; i < many; i++)
		launch(1);
	CHECK_EQUAL(asked_context, 0);
	CHECK_EQUAL(slot(0)->launches - before, many + 1);
}

static void test_streams_of_two_gpus(void)
{
	uint64_t before[gpus] = {slot(0)->launches, slot(1)->launches};

	gpu_of[2] = 1;
	for (int i = 0; i < many; i++) {
		launch(1);
		launch(2);
		launch(2);
	}
	CHECK_EQUAL(slot(0)->launches - before[0], many);
	CHECK_EQUAL(slot(1)->launches - before[1], 2 * many);
}

// A new stream in another context may have the handle of a destroyed stream.
static void test_handle_of_another(void)
{
	uint64_t before = slot(1)->launches;

	launch(1);
	CHECK_EQUAL(vg_cuStreamDestroy_v2(stream(1)), CUDA_SUCCESS);
	gpu_of[1] = 1;
	launch(1);
	CHECK_EQUAL(slot(1)->launches - before, 1);
	CHECK_EQUAL(vg_cuStreamDestroy_v2(stream(1)), CUDA_SUCCESS);
	gpu_of[1] = 0;
	vg_throttle_drop_context(state, context(1));
}

// A large debt is charged to the bucket at the next launch. Small debts are charged when their sum
// is large.
static void test_debts(void)
{
	const struct vg_container_device *bucket = &state->pages.usage->header.devices[0];
	struct vg_meter *meter = atomic_load(&state->meters[0]);
	uint64_t spent;

	for (int i = 0; i < many; i++) // until the meter knows the short length
		launch(3);
	meter->owed = 10 * least_post;
	spent = bucket->spent_ns;
	launch(3);
	CHECK(bucket->spent_ns - spent >= 10 * least_post);
	CHECK(meter->owed < least_post);
	spent = bucket->spent_ns;
	meter->owed = least_post / 2;
	launch(3);
	CHECK_EQUAL(bucket->spent_ns, spent);
	for (int i = 0; bucket->spent_ns == spent; i++) {
		CHECK(i < many * many);
		launch(3);
	}
	CHECK(bucket->spent_ns - spent >= least_post);
	CHECK_EQUAL(bucket->spent_ns, slot(0)->gpu_time_ns);
}

// Work launched into a capture does not run. The work is not charged, and no event is recorded into
// the capture. Before the first capture, no stream's status is queried.
static void test_capture(void)
{
	uint64_t before = slot(0)->launches;

	CHECK_EQUAL(events_asked_capture, 0);
	CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(3), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
	for (int i = 0; i < many; i++)
		launch(3);
	CHECK_EQUAL(events_asked_capture, 2 * many); // before and after each launch
	CHECK_EQUAL(slot(0)->launches, before);
	events_capturing = false;
	launch(3);
	CHECK_EQUAL(slot(0)->launches, before + 1);
}

// Another thread may end the capture before the launch. The work then runs, and is charged all its
// time.
static void test_capture_that_ends(bool again)
{
	struct vg_meter *meter = atomic_load(&state->meters[0]);
	uint64_t before = state->pages.usage->header.devices[0].spent_ns;

	CHECK_EQUAL(vg_cuStreamBeginCapture_v2(stream(6), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
	another_thread = again ? captures_again : ends_the_capture;
	launch(6);
	another_thread = does_nothing;
	events_capturing = false;
	vg_sleep_until(gpu_until);
	launch(6);
	CHECK(vg_meter_try_lock(meter));
	vg_throttle_waited(state, meter);
	vg_meter_unlock(meter);
	CHECK(state->pages.usage->header.devices[0].spent_ns - before >= late_ns);
	CHECK_EQUAL(meter->unmeasured.count, 0);
}

// A launch may wait for the end of its work of unknown length. The work is charged all its time,
// although another thread's event does not wait for the launch.
static void test_launch_that_waits(void)
{
	uint64_t before = state->pages.usage->header.devices[0].spent_ns;

	another_thread = closes_the_segment;
	launch_kind(0x6000, 7);
	another_thread = does_nothing;
	close_segment(7);
	CHECK(state->pages.usage->header.devices[0].spent_ns - before >= 2 * vg_stuck_ns);
	CHECK_EQUAL(atomic_load(&state->meters[0])->unmeasured.count, 0);
}

// A newer driver's function that may begin a capture is returned to the program. Afterwards,
// streams' capture status is queried: once for the launch, and before each call that touches the
// stream. The number of these calls depends on time.
static void test_capture_by_what_is_not_known(void)
{
	void *found = NULL;
	void (*function)(void);

	atomic_store(&vg_capture_count, false);
	events_asked_capture = 0;
	events_recorded = 0;
	asked_work = 0;
	CHECK_EQUAL(vg_cuGetProcAddress_v2("cuStreamBeginRecaptureToGraph", &found, 0, 0, NULL), CUDA_SUCCESS);
	memcpy(&function, &found, sizeof function);
	CHECK(function == driver_later);
	launch(3);
	CHECK_EQUAL(events_asked_capture, 1 + events_recorded + asked_work);
}

// charged returns the charge of the first GPU, with the debt that is not posted yet.
static int64_t charged(void)
{
	return (int64_t)state->pages.usage->header.devices[0].spent_ns + atomic_load(&state->meters[0])->owed;
}

// An error of the driver does not show that a stream is captured, so that the work is charged.
// After the error for a stream beside a capture, the work is not charged, because the driver
// refuses the launch.
static void test_capturing_unknown(void)
{
	// No event shows the end of the work, so that more work would wait for room in the queue.
	enum { few = 100 };
	static const CUresult errors[] = {999, 1, 201, 400, 700};
	uint64_t before = slot(0)->launches;
	int64_t spent = charged();

	atomic_store(&vg_capture_count, 1);
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		capturing_fails = errors[i];
		events_capturing = i % 2;
		for (int n = 0; n < few; n++)
			launch(3);
		CHECK_EQUAL(slot(0)->launches - before, (i + 1) * few);
	}
	CHECK(charged() > spent);
	capturing_fails = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	events_capturing = false;
	launch(3);
	capturing_fails = CUDA_SUCCESS;
	events_capturing = true;
	launch(3);
	CHECK_EQUAL(slot(0)->launches - before, sizeof errors / sizeof *errors * few);
	events_capturing = false;
	atomic_store(&vg_capture_count, 0);
}

// If the driver does not report a stream's context, the stream's work counts for the current
// context.
static void test_context_unknown(void)
{
	uint64_t before[gpus] = {slot(0)->launches, slot(1)->launches};

	context_fails = 999;
	current = context(1);
	launch(4);
	CHECK_EQUAL(slot(1)->launches - before[1], 1);
	launch(4);
	current = context(0);
	launch(5);
	launch(5);
	CHECK_EQUAL(slot(0)->launches - before[0], 2);
	CHECK_EQUAL(slot(1)->launches - before[1], 2);
	current = NULL;
	context_fails = CUDA_SUCCESS;
}

int main(void)
{
	install();
	begin();
	test_one_stream();
	test_streams_of_two_gpus();
	test_handle_of_another();
	test_debts();
	test_capture();
	test_capture_by_what_is_not_known();
	test_capturing_unknown();
	test_context_unknown();
	test_capture_that_ends(false);
	test_capture_that_ends(true);
	test_launch_that_waits();
	for (int i = 0; i < gpus; i++)
		free(atomic_load(&state->meters[i]));
	return 0;
}
