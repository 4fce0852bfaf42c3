// SPDX-License-Identifier: Apache-2.0
/* This test covers the differences between cards: clock, hardware queues, stamps of events. */
#include "harness.h"

#include <unistd.h>

static CUevent make_event(void)
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	CUevent event;

	OK(cuEventCreate(&event, 0));
	return event;
}

/* stamped returns the time of a kernel of this length by the GPU's clock, in ms. */
static double stamped(uint64_t ns)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	static CUevent from, to;
	float ms;

	if (!from) {
		from = make_event();
		to = make_event();
	}
	OK(cuEventRecord(from, NULL));
	spin(NULL, ns, 1);
	OK(cuEventRecord(to, NULL));
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&ms, from, to));
	return (double)ms;
}

static void the_clock_is_fast(void *unused)
{
	double least = 1e9;

	(void)unused;
	begin();
	kernel("spin");
	for (int i = 0; i < 4; i++) { /* a busy host delays launches */
		double ms = stamped(80 * MS); /* two periods of the slew */

		least = ms < least ? ms : least;
	}
	BETWEEN(least, 81.6, 81.7);
}

static int by_length(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

enum { KERNELS = 60 };

/* stamp_many measures kernels of this length, and sorts the kernels' times in ms. */
static void stamp_many(uint64_t ns, double ms[KERNELS])
{
	for (int i = 0; i < KERNELS; i++)
		ms[i] = stamped(ns);
	qsort(ms, KERNELS, sizeof(ms[0]), by_length);
}

static void the_clock_is_slewed(void *unused)
{
	double launches[KERNELS], ms[KERNELS], usual;

	(void)unused;
	begin();
	kernel("spin");
	/* The launches between the stamps also take time, most with instrumentation. */
	stamp_many(1000, launches);
	usual = launches[KERNELS / 2] - 1e-3;
	stamp_many(4 * MS, ms);
	/* The clock runs at each of two rates for half of the time. The quartiles are the medians of
	 * the two rates. */
	BETWEEN(ms[KERNELS / 4] - usual, 4.035, 4.055); /* 4 × (1.02 − 0.01) */
	BETWEEN(ms[KERNELS * 3 / 4] - usual, 4.115, 4.16);
	BETWEEN(ms[0], 4.035, 4.055);
}

/* streams_share_queues uses streams on queues 1, 0 and 1. The default stream uses the first
 * hardware queue. */
static void streams_share_queues(void *unused)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventQuery, CUevent);
	DRIVER(cuEventSynchronize, CUevent);
	CUevent behind, beside;
	CUstream streams[3];
	uint64_t from;

	(void)unused;
	begin();
	behind = make_event();
	beside = make_event();
	for (int i = 0; i < 3; i++)
		OK(cuStreamCreate(&streams[i], 1));
	kernel("spin");
	spin(streams[0], 50 * MS, 1);
	from = gs_now();
	OK(cuEventRecord(beside, streams[1]));
	OK(cuEventRecord(behind, streams[2]));
	CHECK(cuEventQuery(beside) == CUDA_SUCCESS);
	CHECK(cuEventQuery(behind) == CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(behind));
	BETWEEN((double)(gs_now() - from) / 1e6, 49, 60);
}

/* kernels_of_a_queue_run_side_by_side checks that a kernel waits only until the work ahead in its
 * hardware queue is issued. */
static void kernels_of_a_queue_run_side_by_side(void *unused)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuCtxSynchronize, void);
	CUstream streams[3];

	(void)unused;
	begin();
	for (int i = 0; i < 3; i++)
		OK(cuStreamCreate(&streams[i], 1));
	kernel("spin");
	spin(streams[0], 20 * MS, 1);
	spin(streams[2], 20 * MS, 1); /* beside the first */
	spin(streams[0], 20 * MS, 1); /* behind the first */
	spin(streams[2], 20 * MS, 1); /* issued only after the end of the first */
	OK(cuCtxSynchronize());
	BETWEEN((double)gpu_time(getpid(), 0) / 1e6, 39.9, 41);
}

/* event_beside_a_kernel queries a stream's event beside a kernel of 20 ms in another stream. The
 * result is 0, or NOT_READY if the event is behind the kernel. */
static CUresult event_beside_a_kernel(void)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventQuery, CUevent);
	CUevent event = make_event();
	CUstream streams[2];

	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&streams[i], 1));
	kernel("spin");
	spin(streams[0], 20 * MS, 1);
	OK(cuEventRecord(event, streams[1]));
	return cuEventQuery(event);
}

static void the_environment_says_how_many_queues(void *unused)
{
	(void)unused;
	CHECK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
	begin();
	CHECK(event_beside_a_kernel() == CUDA_ERROR_NOT_READY);
}

static void other_numbers_of_queues_count_for_nothing(void *unused)
{
	(void)unused;
	CHECK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "33", 1) == 0);
	begin();
	CHECK(event_beside_a_kernel() == CUDA_SUCCESS);
}

static void the_environment_makes_launches_wait(void *unused)
{
	CUstream stream;

	(void)unused;
	CHECK(setenv("CUDA_LAUNCH_BLOCKING", "1", 1) == 0);
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamQuery, CUstream);

	begin();
	OK(cuStreamCreate(&stream, 1));
	kernel("spin");
	spin(stream, 20 * MS, 1);
	OK(cuStreamQuery(stream));
}

static void saturate(void *unused)
{
	(void)unused;
	begin();
	kernel("spin");
	for (;;)
		spin(NULL, 20 * MS, 1);
}

static void events_are_stamped_at_once(void *unused)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventQuery, CUevent);
	pid_t neighbour = start(saturate, NULL);
	CUevent event;

	(void)unused;
	begin();
	event = make_event();
	while (gpu_time(neighbour, 0) == 0)
		sleep_ns(5 * MS);
	for (int i = 0; i < 20; i++) {
		OK(cuEventRecord(event, NULL));
		CHECK(cuEventQuery(event) == CUDA_SUCCESS);
		sleep_ns(300000);
	}
	kill_hard(neighbour);
}

int main(void)
{
	static void (*const tests[])(void *) = {
		the_clock_is_fast,
		the_clock_is_slewed,
		streams_share_queues,
		kernels_of_a_queue_run_side_by_side,
		the_environment_says_how_many_queues,
		other_numbers_of_queues_count_for_nothing,
		the_environment_makes_launches_wait,
		events_are_stamped_at_once,
	};

	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		finish(start(tests[i], NULL));
	return 0;
}
