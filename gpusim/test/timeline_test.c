// SPDX-License-Identifier: Apache-2.0
/* This test covers time: exact durations, order, concurrency, slices between processes. */
#include "harness.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* LEAD_NS is the time in which even a host slowed down by instrumentation fills the queue. */
#define LEAD_NS (100 * MS)

/* timed returns the time between two events around work in the default stream, in ms. */
static float timed(void (*work)(void))
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	DRIVER(cuEventDestroy_v2, CUevent);
	CUevent from, to;
	float ms;

	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	spin(NULL, LEAD_NS, 1); /* keeps the host ahead, so that the GPU is never idle */
	OK(cuEventRecord(from, NULL));
	work();
	OK(cuEventRecord(to, NULL));
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&ms, from, to));
	OK(cuEventDestroy_v2(from));
	OK(cuEventDestroy_v2(to));
	return ms;
}

static void thousand_short(void)
{
	for (int i = 0; i < 1000; i++)
		spin(NULL, 20000, 1);
}

static void busy_loop(void *unused)
{
	(void)unused;
	for (volatile unsigned i = 0;; i++)
		;
}

static void short_kernels_are_exact_under_load(void *unused)
{
	pid_t load[3];

	(void)unused;
	begin();
	kernel("spin");
	BETWEEN(timed(thousand_short), 20.0 * 0.99, 20.0 * 1.01);
	for (int i = 0; i < 3; i++)
		load[i] = start(busy_loop, NULL);
	BETWEEN(timed(thousand_short), 20.0 * 0.99, 20.0 * 1.01);
	for (int i = 0; i < 3; i++)
		kill_hard(load[i]);
	/* GPU time is the time of the work, however slowly the host queued it. */
	BETWEEN(gpu_time(getpid(), 0), 2 * LEAD_NS + 39.9 * MS, 2 * LEAD_NS + 40.1 * MS);
}

static CUstream stream_a, stream_b;

static void side_by_side(void)
{
	spin(stream_a, 10 * MS, 1);
	spin(stream_b, 10 * MS, 1);
}

static void too_big_for_both(void)
{
	spin(stream_a, 10 * MS, 1 << 20);
	spin(stream_b, 10 * MS, 1 << 20);
}

static void one_after_the_other(void)
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned);
	DRIVER(cuEventDestroy_v2, CUevent);
	CUevent event;

	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	spin(stream_a, 10 * MS, 1);
	OK(cuEventRecord(event, stream_a));
	OK(cuStreamWaitEvent(stream_b, event, 0));
	spin(stream_b, 10 * MS, 1);
	OK(cuEventDestroy_v2(event));
}

static void streams_are_concurrent(void *unused)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamQuery, CUstream);
	DRIVER(cuStreamSynchronize, CUstream);

	(void)unused;
	begin();
	kernel("spin");
	OK(cuStreamCreate(&stream_a, 0));
	OK(cuStreamCreate(&stream_b, 0));
	BETWEEN(timed(side_by_side), 9.9, 11.5);
	BETWEEN(timed(too_big_for_both), 19.9, 21.5);
	BETWEEN(timed(one_after_the_other), 19.9, 21.5);
	/* A non-blocking stream does not wait for the default stream. */
	OK(cuStreamCreate(&stream_a, CU_STREAM_NON_BLOCKING));
	spin(NULL, 50 * MS, 1);
	spin(stream_a, MS, 1);
	OK(cuStreamSynchronize(stream_a));
	CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
	CHECK(cuStreamQuery(stream_a) == CUDA_SUCCESS);
}

static void saturate(void *kernel_ns)
{
	begin();
	kernel("spin");
	for (;;)
		spin(NULL, *(uint64_t *)kernel_ns, 1 << 20);
}

/* start_saturating starts a process that keeps the GPU full with kernels of this length. */
static pid_t start_saturating(uint64_t kernel_ns)
{
	pid_t pid = start(saturate, &kernel_ns);

	while (gpu_time(pid, 0) == 0)
		sleep_ns(5 * MS);
	return pid;
}

static void two_processes_get_halves(void *unused)
{
	pid_t pids[2] = {start_saturating(200000), start_saturating(20 * MS)};
	uint64_t before[2], after[2], from;
	double total;

	(void)unused;
	from = gs_now();
	for (int i = 0; i < 2; i++)
		before[i] = gpu_time(pids[i], 0);
	sleep_ns(700 * MS);
	for (int i = 0; i < 2; i++)
		after[i] = gpu_time(pids[i], 0);
	total = (double)(after[0] - before[0] + after[1] - before[1]);
	BETWEEN((double)(after[0] - before[0]) / total, 0.49, 0.51);
	BETWEEN(total / (double)(gs_now() - from), 0.97, 1.01);
	kill_hard(pids[0]);
	kill_hard(pids[1]);
}

static void latency_beside_a_saturating_neighbour(void *unused)
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	pid_t neighbour = start_saturating(20 * MS);
	double sum = 0;
	CUevent from, to;

	(void)unused;
	begin();
	kernel("spin");
	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	for (int i = 0; i < 40; i++) {
		float ms;

		OK(cuEventRecord(from, NULL));
		spin(NULL, 1050000, 1);
		OK(cuEventRecord(to, NULL));
		OK(cuEventSynchronize(to));
		OK(cuEventElapsedTime(&ms, from, to));
		sum += (double)ms;
		sleep_ns(7300000);
	}
	/* The event waits for the rest of the other process's slice. Then the slices alternate. */
	BETWEEN(sum / 40, 2.0, 2.15);
	kill_hard(neighbour);
}

/* an_event_ends_with_the_slice checks that an event behind a kernel as long as a slice needs no
 * second slice. */
static void an_event_ends_with_the_slice(void *unused)
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	pid_t neighbour = start_saturating(20 * MS);
	CUevent from, to;

	(void)unused;
	begin();
	kernel("spin");
	OK(cuEventCreate(&from, 0));
	OK(cuEventCreate(&to, 0));
	for (int i = 0; i < 10; i++) {
		float ms;

		OK(cuEventRecord(from, NULL));
		spin(NULL, 1 * MS, 1);
		OK(cuEventRecord(to, NULL));
		OK(cuEventSynchronize(to));
		OK(cuEventElapsedTime(&ms, from, to));
		BETWEEN((double)ms, 0.999, 1.001);
		sleep_ns(7300000);
	}
	kill_hard(neighbour);
}

static void one_long(void)
{
	spin(NULL, 100 * MS, 1);
}

static void a_dead_neighbour_stops_at_once(void *unused)
{
	pid_t neighbour = start_saturating(20 * MS);

	(void)unused;
	begin();
	kernel("spin");
	kill_hard(neighbour);
	BETWEEN(timed(one_long), 99.9, 110);
}

#define MANY 700

/* the_default_stream_waits_for_all checks that the legacy default stream waits for any number of
 * blocking streams. */
static void the_default_stream_waits_for_all(void *unused)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamQuery, CUstream);
	DRIVER(cuStreamSynchronize, CUstream);
	static CUstream streams[MANY];

	(void)unused;
	begin();
	kernel("spin");
	for (int i = 0; i < MANY; i++)
		OK(cuStreamCreate(&streams[i], 0));
	for (int i = 0; i < MANY; i++)
		spin(streams[i], 1 * MS, 1 << 20);
	spin(NULL, 1 * MS, 1);
	OK(cuStreamSynchronize(NULL));
	BETWEEN(gpu_time(getpid(), 0), (MANY + 0.99) * MS, (MANY + 1.01) * MS);
	for (int i = 0; i < MANY; i++)
		CHECK(cuStreamQuery(streams[i]) == CUDA_SUCCESS);
}

static void launches_block_when_the_queue_is_full(void *unused)
{
	DRIVER(cuCtxSynchronize, void);
	uint64_t from;

	(void)unused;
	begin();
	kernel("spin");
	from = gs_now();
	for (int i = 0; i < 3000; i++)
		spin(NULL, 100000, 1);
	/* All launches have ended except as many as a queue holds. A busy host may take longer. */
	BETWEEN(gs_now() - from, 190 * MS, 20000 * MS);
	OK(cuCtxSynchronize());
	BETWEEN(gs_now() - from, 299 * MS, 20000 * MS);
	BETWEEN(gpu_time(getpid(), 0), 299.99 * MS, 300.01 * MS);
}

static void meet(CUstream stream, uint64_t ns, uint64_t mine, uint64_t theirs, uint64_t turn)
{
	DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	       unsigned, CUstream, void **, void **);
	void *params[] = {&ns, &mine, &theirs, &turn};

	OK(cuLaunchKernel(kernel("meet"), 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

/* two_turns checks that both kernels of a turn end with the later kernel. Kernels with another turn
 * meet separately. */
static void two_turns(void)
{
	meet(stream_a, 5 * MS, 0x1000, 0x2000, 1);
	meet(stream_a, 20 * MS, 0x1000, 0x2000, 2);
	meet(stream_b, 30 * MS, 0x2000, 0x1000, 1);
	meet(stream_b, 5 * MS, 0x2000, 0x1000, 2);
}

static void kernels_meet(void *unused)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamQuery, CUstream);

	(void)unused;
	begin();
	OK(cuStreamCreate(&stream_a, 0));
	OK(cuStreamCreate(&stream_b, 0));
	kernel("meet");
	BETWEEN(timed(two_turns), 49.9, 50.1);
	/* A kernel without a counterpart holds the GPU until a counterpart arrives. */
	meet(stream_a, MS, 0x1000, 0x2000, 3);
	meet(stream_b, MS, 0x2000, 0x1000, 4);
	sleep_ns(50 * MS);
	CHECK(cuStreamQuery(stream_a) == CUDA_ERROR_NOT_READY);
	meet(stream_a, MS, 0x1000, 0x2000, 4);
	CHECK(cuStreamQuery(stream_b) == CUDA_ERROR_NOT_READY);
}

static void mark_time(void *argument)
{
	*(uint64_t *)argument = gs_now();
}

static void host_functions_run_in_their_turn(void *unused)
{
	DRIVER(cuLaunchHostFunc, CUstream, CUhostFn, void *);
	DRIVER(cuStreamSynchronize, CUstream);
	uint64_t from, at = 0;

	(void)unused;
	begin();
	kernel("spin");
	from = gs_now();
	spin(NULL, 20 * MS, 1);
	OK(cuLaunchHostFunc(NULL, mark_time, &at));
	spin(NULL, 5 * MS, 1);
	OK(cuStreamSynchronize(NULL));
	BETWEEN(at - from, 20 * MS, 2000 * MS);
	BETWEEN(gs_now() - at, 5 * MS, 2000 * MS);
}

int main(void)
{
	static void (*const tests[])(void *) = {
		short_kernels_are_exact_under_load,
		streams_are_concurrent,
		two_processes_get_halves,
		latency_beside_a_saturating_neighbour,
		an_event_ends_with_the_slice,
		a_dead_neighbour_stops_at_once,
		the_default_stream_waits_for_all,
		launches_block_when_the_queue_is_full,
		host_functions_run_in_their_turn,
		kernels_meet,
	};

	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		finish(start(tests[i], NULL));
	return 0;
}
