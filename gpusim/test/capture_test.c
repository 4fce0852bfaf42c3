// SPDX-License-Identifier: Apache-2.0
/* This test covers the rules of captures and events in a real driver. capture_test.conf enables the
 * rules. */
#include "harness.h"

#include <pthread.h>
#include <time.h>

static CUstream blocking, other;
static CUevent event;

static void make(void)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuEventCreate, CUevent *, unsigned);

	OK(cuStreamCreate(&blocking, 0));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, 0));
}

static void capture_begin(CUstream stream, int mode)
{
	DRIVER(cuStreamBeginCapture_v2, CUstream, int);

	OK(cuStreamBeginCapture_v2(stream, mode));
}

static CUresult capture_end(CUstream stream)
{
	DRIVER(cuStreamEndCapture, CUstream, CUgraph *);
	DRIVER(cuGraphDestroy, CUgraph);
	CUgraph graph = NULL;
	CUresult result = cuStreamEndCapture(stream, &graph);

	CHECK((result == CUDA_SUCCESS) == (graph != NULL));
	if (graph)
		OK(cuGraphDestroy(graph));
	return result;
}

/* ---- uses of the legacy stream, which invalidate a blocking stream's capture ---- */

static CUresult record_legacy(void)
{
	DRIVER(cuEventRecord, CUevent, CUstream);

	return cuEventRecord(event, NULL);
}

static CUresult launch_legacy(void)
{
	DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	       unsigned, CUstream, void **, void **);
	uint64_t ns = 1;
	void *values[] = {&ns};

	return cuLaunchKernel(kernel("spin"), 1, 1, 1, 32, 1, 1, 0, NULL, values, NULL);
}

static CUresult copy_legacy(void)
{
	DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream);

	return cuMemcpyHtoDAsync_v2(16, "", 1, NULL);
}

static CUresult set_legacy(void)
{
	DRIVER(cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream);

	return cuMemsetD8Async(16, 0, 1, NULL);
}

static CUresult wait_legacy(void)
{
	DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned);

	return cuStreamWaitEvent(NULL, event, 0);
}

static CUresult query_legacy(void)
{
	DRIVER(cuStreamQuery, CUstream);

	return cuStreamQuery(NULL);
}

static CUresult synchronise_legacy(void)
{
	DRIVER(cuStreamSynchronize, CUstream);

	return cuStreamSynchronize(NULL);
}

static void the_legacy_stream(void)
{
	static CUresult (*const uses[])(void) = {record_legacy, launch_legacy, copy_legacy, set_legacy,
						 wait_legacy, query_legacy, synchronise_legacy};
	DRIVER(cuStreamIsCapturing, CUstream, int *);
	int status;

	kernel("spin");
	for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
		capture_begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
		/* The query fails without any effect. */
		CHECK(cuStreamIsCapturing(NULL, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
		OK(cuStreamIsCapturing(blocking, &status));
		CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
		/* The use invalidates the capture. */
		CHECK(uses[i]() == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
		OK(cuStreamIsCapturing(blocking, &status));
		CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
		CHECK(capture_end(blocking) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

		capture_begin(other, CU_STREAM_CAPTURE_MODE_RELAXED);
		OK(cuStreamIsCapturing(NULL, &status));
		CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
		CHECK(uses[i]() != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
		OK(capture_end(other));
	}
	OK(synchronise_legacy());
}

/* ---- calls that wait for, or query, captured work ---- */

static void captured_things(void)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventQuery, CUevent);
	DRIVER(cuStreamQuery, CUstream);
	DRIVER(cuCtxSynchronize, void);

	capture_begin(other, CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuEventRecord(event, other));
	CHECK(cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
	CHECK(capture_end(other) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
	OK(cuEventRecord(event, other));
	OK(cuStreamQuery(other) == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : cuStreamQuery(other));

	capture_begin(other, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuStreamQuery(other) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK(capture_end(other) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	/* A context includes all streams of the context, even non-blocking streams. */
	capture_begin(other, CU_STREAM_CAPTURE_MODE_RELAXED);
	CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK(capture_end(other) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuCtxSynchronize());
}

/* ---- modes ---- */

struct asked {
	int mode; /* of the querying thread */
	CUresult result;
};

static void *ask(void *argument)
{
	DRIVER(cuThreadExchangeStreamCaptureMode, int *);
	DRIVER(cuEventQuery, CUevent);
	struct asked *asked = argument;
	int mode = asked->mode;

	OK(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
	asked->result = cuEventQuery(event);
	return NULL;
}

/* allowed reports whether a thread may query an event, in the capturing thread or another thread. */
static bool allowed(int capture, int thread_mode, bool elsewhere)
{
	DRIVER(cuThreadExchangeStreamCaptureMode, int *);
	struct asked asked = {.mode = thread_mode};
	int mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	pthread_t thread;
	CUresult end;

	capture_begin(other, capture);
	if (elsewhere) {
		CHECK(pthread_create(&thread, NULL, ask, &asked) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	} else {
		ask(&asked);
		OK(cuThreadExchangeStreamCaptureMode(&mode));
	}
	end = capture_end(other);
	CHECK(end == (asked.result ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS));
	CHECK(!asked.result || asked.result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return !asked.result;
}

static void modes(void)
{
	enum { global = CU_STREAM_CAPTURE_MODE_GLOBAL, local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
	       relaxed = CU_STREAM_CAPTURE_MODE_RELAXED };

	for (int mode = global; mode <= relaxed; mode++) {
		/* The querying thread owns the capture. */
		CHECK(allowed(mode, global, false) == (mode == relaxed));
		CHECK(allowed(mode, local, false) == (mode == relaxed));
		CHECK(allowed(mode, relaxed, false));
		/* Another thread owns the capture. */
		CHECK(allowed(mode, global, true) == (mode != global));
		CHECK(allowed(mode, local, true));
		CHECK(allowed(mode, relaxed, true));
	}
}

/* ---- events ---- */

static void events_of_another_context(void)
{
	DRIVER(cuCtxCreate_v4, CUcontext *, void *, unsigned, CUdevice);
	DRIVER(cuCtxDestroy_v2, CUcontext);
	DRIVER(cuCtxSynchronize, void);
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned);
	CUcontext context;
	CUevent mine;
	float ms;

	OK(cuEventRecord(event, NULL));
	OK(cuCtxSynchronize());
	OK(cuCtxCreate_v4(&context, NULL, 0, 0));
	OK(cuEventCreate(&mine, 0));
	CHECK(cuEventRecord(event, NULL) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(cuEventRecord(mine, other) == CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(mine, NULL));
	OK(cuCtxSynchronize());
	CHECK(cuEventElapsedTime(&ms, event, mine) == CUDA_ERROR_INVALID_HANDLE);
	OK(cuStreamWaitEvent(NULL, event, 0)); /* waiting may cross contexts */
	OK(cuCtxDestroy_v2(context));
}

static double now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* a_full_channel checks that an event's record waits like a launch if 1024 items are queued. */
static void a_full_channel(void)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuStreamSynchronize, CUstream);
	double began = now_ms();

	spin(other, 300 * MS, 1);
	for (int i = 0; i < 900; i++)
		OK(cuEventRecord(event, other));
	BETWEEN(now_ms() - began, 0, 200);
	for (int i = 0; i < 200; i++)
		OK(cuEventRecord(event, other));
	BETWEEN(now_ms() - began, 290, 1000);
	OK(cuStreamSynchronize(other));
}

static void all(void *unused)
{
	(void)unused;
	begin();
	make();
	the_legacy_stream();
	captured_things();
	modes();
	events_of_another_context();
	a_full_channel();
}

int main(void)
{
	finish(start(all, NULL));
	return 0;
}
