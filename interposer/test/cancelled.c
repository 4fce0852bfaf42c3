// SPDX-License-Identifier: Apache-2.0

// cancelled cancels a thread during the interposer's wait for a silent agent. The other threads
// continue. The agent answers after this program has written a line, and the measurement then
// corrects the charges of the other threads. unkind_test.sh runs this program.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "check.h"
#include "program.h"

#define GIB (UINT64_C(1) << 30)

enum { most_s = 5 };

static size_t refused_bytes;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int alloc(size_t bytes)
{
	uint64_t address;

	return CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, bytes);
}

static void *ask(void *context)
{
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (void *), context), 0);
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	CHECK_EQUAL(alloc(refused_bytes), CUDA_ERROR_OUT_OF_MEMORY); // after a query to the agent
	pthread_testcancel();
	return NULL;
}

static void cancel_one(void *context)
{
	pthread_t thread;
	void *result;

	CHECK_EQUAL(pthread_create(&thread, NULL, ask, context), 0);
	CHECK_EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
}

int main(void)
{
	const struct timespec silence = {.tv_sec = 2, .tv_nsec = 200000000};
	const struct timespec moment = {.tv_nsec = 100000000};
	void *context;
	double began;
	size_t before;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	CHECK_EQUAL(CALL("cuCtxGetCurrent", (void **), &context), 0);
	refused_bytes = left() + 64 * MIB;
	CHECK_EQUAL(alloc(refused_bytes), CUDA_ERROR_OUT_OF_MEMORY); // all log lines have been written
	nanosleep(&silence, NULL); // the longest backoff after a query without an answer
	cancel_one(context);
	began = now();
	CHECK_EQUAL(alloc(64 * MIB), 0);
	CHECK_EQUAL(alloc(refused_bytes), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(now() - began < most_s);
	before = left();
	printf("cancelled\n");
	fflush(stdout);
	for (began = now(); left() <= before && now() - began < 2 * most_s;)
		nanosleep(&moment, NULL);
	CHECK(left() > before);
	return 0;
}
