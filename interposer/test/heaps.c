// SPDX-License-Identifier: Apache-2.0

// heaps raises a context's memory for kernels (the device heap, the FIFO of printf, the stacks).
// heaps checks that the container's limit of 512 MiB besides the context applies. Then heaps
// allocates all remaining memory. With the argument "late", heaps raises the limits, and repeatedly
// allocates all remaining memory while the agent measures. A kernel then takes the raised memory.
// entries_test.sh and unkind_test.sh run this program, and check its physical memory.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "program.h"

enum { stack = CU_LIMIT_STACK_SIZE, fifo = CU_LIMIT_PRINTF_FIFO_SIZE, heap = CU_LIMIT_MALLOC_HEAP_SIZE };

static int set(int limit, size_t value)
{
	return CALL("cuCtxSetLimit", (int, size_t), limit, value);
}

// A raised limit for which the container's limit has no room is refused with the right error, and
// keeps its value.
static void expect_refused(int limit, size_t value)
{
	size_t before = left();
	size_t had = 0;
	size_t has = 0;

	CHECK_EQUAL(CALL("cuCtxGetLimit", (size_t *, int), &had, limit), 0);
	CHECK_EQUAL(set(limit, value), 2);
	CHECK_EQUAL(CALL("cuCtxGetLimit", (size_t *, int), &has, limit), 0);
	CHECK_EQUAL(has, had);
	CHECK_EQUAL(left(), before);
}

static void test_raised(void)
{
	size_t before = left();

	CHECK_EQUAL(set(heap, 8 * MIB), 0); // the current value
	CHECK_EQUAL(left(), before);
	CHECK_EQUAL(set(heap, 108 * MIB), 0);
	CHECK_EQUAL(left(), before - 100 * MIB);
	CHECK_EQUAL(set(heap, 308 * MIB), 0); // 300 MiB include the old heap
	CHECK_EQUAL(left(), before - 300 * MIB);
	CHECK_EQUAL(set(fifo, 17 * MIB), 0);
	CHECK_EQUAL(left(), before - 316 * MIB);
	expect_refused(heap, 600 * MIB);
	expect_refused(heap, SIZE_MAX);
	expect_refused(fifo, 300 * MIB);
	CHECK_EQUAL(CALL("cuDevicePrimaryCtxReset_v2", (CUdevice), 0), 0);
	use_primary_context();
	CHECK_EQUAL(left(), before);
}

static void *raise_often(void *context)
{
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (void *), context), 0);
	for (int i = 0; i < 10000; i++)
		CHECK_EQUAL(set(heap, i % 2 ? 8 * MIB : 108 * MIB), 0);
	return NULL;
}

// Two threads that raise the same limit are charged once.
static void test_raised_by_two(void)
{
	size_t before = left();
	pthread_t threads[2];
	void *context;

	CHECK_EQUAL(CALL("cuDevicePrimaryCtxRetain", (void **, CUdevice), &context, 0), 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&threads[i], NULL, raise_often, context) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK_EQUAL(left(), before - 100 * MIB);
	CHECK_EQUAL(CALL("cuDevicePrimaryCtxReset_v2", (CUdevice), 0), 0);
	use_primary_context();
	CHECK_EQUAL(left(), before);
}

// device_threads returns the number of threads that the GPU can hold.
static size_t device_threads(void)
{
	int sms = 0;
	int threads = 0;

	CHECK_EQUAL(CALL("cuDeviceGetAttribute", (int *, int, CUdevice), &sms,
			 CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0), 0);
	CHECK_EQUAL(CALL("cuDeviceGetAttribute", (int *, int, CUdevice), &threads,
			 CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0), 0);
	return (size_t)sms * (size_t)threads;
}

// Every thread that the GPU can hold has a stack.
static void test_stacks(void)
{
	size_t before = left();
	size_t had = 0;

	CHECK_EQUAL(CALL("cuCtxGetLimit", (size_t *, int), &had, stack), 0);
	CHECK_EQUAL(set(stack, had + 512), 0);
	CHECK(left() <= before - 512 * device_threads());
	expect_refused(stack, 64 << 10);
	expect_refused(stack, SIZE_MAX);
}

static void take_the_rest(void)
{
	uint64_t address;
	int result;

	do
		result = CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, 2 * MIB);
	while (result == 0);
	CHECK_EQUAL(result, 2);
	CHECK(left() < 2 * MIB);
}

// ---- memory that a kernel takes late

static const char empty[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry empty()\n{\n	ret;\n}\n";

static void launch(void)
{
	void *module;
	void *function;

	CHECK_EQUAL(CALL("cuModuleLoadData", (void **, const void *), &module, empty), 0);
	CHECK_EQUAL(CALL("cuModuleGetFunction", (void **, void *, const char *), &function, module, "empty"), 0);
	CHECK_EQUAL(CALL("cuLaunchKernel",
			 (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
			  void **, void **),
			 function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 0);
	CHECK_EQUAL(CALL("cuCtxSynchronize", (void)), 0);
}

// Memory that a kernel may take stays reserved for the kernel, however often the agent measures
// that the memory is free.
static void test_late(void)
{
	const struct timespec moment = {.tv_nsec = 300000000}; // the interval of queries to the agent
	size_t granted = 0;
	uint64_t address;

	CHECK_EQUAL(set(heap, 208 * MIB), 0);
	CHECK_EQUAL(set(fifo, 17 * MIB), 0);
	CHECK_EQUAL(set(stack, 1280), 0);
	for (int round = 0; round < 4; round++) {
		while (CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, 2 * MIB) == 0)
			granted += 2 * MIB;
		nanosleep(&moment, NULL);
	}
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0); // for the kernel's code
	launch();
	printf("{\"pid\":%d,\"granted_bytes\":%zu}\n", (int)getpid(), granted);
}

int main(int argc, char **argv)
{
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	if (argc > 1 && strcmp(argv[1], "late") == 0) {
		test_late();
		return 0;
	}
	test_raised();
	test_raised_by_two();
	test_stacks();
	take_the_rest();
	printf("{\"pid\":%d}\n", (int)getpid());
	return 0;
}
