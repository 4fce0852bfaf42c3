// SPDX-License-Identifier: Apache-2.0

// heaps raises what a context holds for kernels (the device heap, the FIFO of
// printf, the stacks) and expects it to be held to the container's limit of 1 GiB;
// then it takes all that is left. Its caller, doors_test.sh, looks at what it
// physically held.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "driver.h"

#define MIB (UINT64_C(1) << 20)

enum { stack = 0, fifo = 1, heap = 2 };

typedef int (*init_fn)(unsigned flags);
typedef int (*retain_fn)(void **context, int device);
typedef int (*one_fn)(void *object);
typedef int (*device_fn)(int device);
typedef int (*info_fn)(size_t *available, size_t *total);
typedef int (*set_fn)(int limit, size_t value);
typedef int (*get_fn)(size_t *value, int limit);
typedef int (*alloc_fn)(uint64_t *address, size_t bytes);

static size_t left(void)
{
	size_t available = 0;
	size_t total = 0;

	CHECK_EQUAL(((info_fn)find("cuMemGetInfo_v2"))(&available, &total), 0);
	return available;
}

static int set(int limit, size_t value)
{
	return ((set_fn)find("cuCtxSetLimit"))(limit, value);
}

static void start(void)
{
	void *context;

	CHECK_EQUAL(((retain_fn)find("cuDevicePrimaryCtxRetain"))(&context, 0), 0);
	CHECK_EQUAL(((one_fn)find("cuCtxSetCurrent"))(context), 0);
}

// A limit that does not fit is refused by the right error, and stays as it was.
static void expect_refused(int limit, size_t value)
{
	size_t before = left();
	size_t had = 0;
	size_t has = 0;

	CHECK_EQUAL(((get_fn)find("cuCtxGetLimit"))(&had, limit), 0);
	CHECK_EQUAL(set(limit, value), 2);
	CHECK_EQUAL(((get_fn)find("cuCtxGetLimit"))(&has, limit), 0);
	CHECK_EQUAL(has, had);
	CHECK_EQUAL(left(), before);
}

static void test_raised(void)
{
	size_t before = left();

	CHECK_EQUAL(set(heap, 8 * MIB), 0); // as it is
	CHECK_EQUAL(left(), before);
	CHECK_EQUAL(set(heap, 108 * MIB), 0);
	CHECK_EQUAL(left(), before - 100 * MIB);
	CHECK_EQUAL(set(heap, 308 * MIB), 0); // not 300 MiB more
	CHECK_EQUAL(left(), before - 300 * MIB);
	CHECK_EQUAL(set(fifo, 17 * MIB), 0);
	CHECK_EQUAL(left(), before - 316 * MIB);
	expect_refused(heap, 600 * MIB);
	expect_refused(heap, SIZE_MAX);
	expect_refused(fifo, 300 * MIB);
	CHECK_EQUAL(((device_fn)find("cuDevicePrimaryCtxReset_v2"))(0), 0);
	start();
	CHECK_EQUAL(left(), before);
}

static void *raise_often(void *context)
{
	CHECK_EQUAL(((one_fn)find("cuCtxSetCurrent"))(context), 0);
	for (int i = 0; i < 10000; i++)
		CHECK_EQUAL(set(heap, i % 2 ? 8 * MIB : 108 * MIB), 0);
	return NULL;
}

// Two threads that raise the same limit raise it once.
static void test_raised_by_two(void)
{
	size_t before = left();
	pthread_t threads[2];
	void *context;

	CHECK_EQUAL(((retain_fn)find("cuDevicePrimaryCtxRetain"))(&context, 0), 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, raise_often, context) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK_EQUAL(left(), before - 100 * MIB);
	CHECK_EQUAL(((device_fn)find("cuDevicePrimaryCtxReset_v2"))(0), 0);
	start();
	CHECK_EQUAL(left(), before);
}

// A stack is there for every thread that the GPU can hold.
static void test_stacks(void)
{
	size_t before = left();

	CHECK_EQUAL(set(stack, 1536), 0);
	CHECK(left() <= before - 64 * MIB);
	expect_refused(stack, 64 << 10);
	expect_refused(stack, SIZE_MAX);
}

static void take_the_rest(void)
{
	uint64_t address;
	int result;

	do
		result = ((alloc_fn)find("cuMemAlloc_v2"))(&address, 2 * MIB);
	while (result == 0);
	CHECK_EQUAL(result, 2);
	CHECK(left() < 2 * MIB);
}

int main(void)
{
	CHECK_EQUAL(((init_fn)find("cuInit"))(0), 0);
	start();
	test_raised();
	test_raised_by_two();
	test_stacks();
	take_the_rest();
	printf("{\"pid\":%d}\n", (int)getpid());
	return 0;
}
