// SPDX-License-Identifier: Apache-2.0

// exportable takes all available memory from exportable pools, which keep freed memory for
// allocations of the same size. entries_test.sh runs this program, and checks its peak memory.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "program.h"

enum { out_of_memory = 2, threads = 8, rounds = 500, most_pieces = 64 };

static void *new_pool_on(CUdevice device)
{
	const CUmemPoolProps properties = {.allocType = 1, .handleTypes = 1,
					   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
	void *pool = NULL;

	CHECK_EQUAL(CALL("cuMemPoolCreate", (void **, const CUmemPoolProps *), &pool, &properties), 0);
	return pool;
}

static void *new_pool(void)
{
	return new_pool_on(0);
}

static void destroy(void *pool)
{
	CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
}

static void *new_stream(void)
{
	void *stream = NULL;

	CHECK_EQUAL(CALL("cuStreamCreate", (void **, unsigned), &stream, 1), 0);
	return stream;
}

static int take(uint64_t *address, void *pool, size_t bytes, void *stream)
{
	return CALL("cuMemAllocFromPoolAsync", (uint64_t *, size_t, void *, void *), address, bytes, pool, stream);
}

static void give(uint64_t address, void *stream)
{
	CHECK_EQUAL(CALL("cuMemFreeAsync", (uint64_t, void *), address, stream), 0);
}

// fill takes the remaining memory outside pools, and returns the number of allocations.
static int fill(uint64_t *pieces)
{
	int count = 0;

	for (size_t bytes = 256 * MIB; bytes >= 2 * MIB; bytes /= 2)
		while (count < most_pieces &&
		       !CALL("cuMemAlloc_v2", (uint64_t *, size_t), &pieces[count], bytes))
			count++;
	CHECK(left() < 2 * MIB);
	return count;
}

static void empty(const uint64_t *pieces, int count)
{
	while (count > 0)
		CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), pieces[--count]), 0);
}

// Each size has one allocation, which is freed before the next allocation.
static void test_sizes(void)
{
	void *pool = new_pool();
	int refused = 0;
	uint64_t address;

	for (size_t bytes = 200 * MIB; bytes >= 2 * MIB; bytes -= 2 * MIB) {
		if (take(&address, pool, bytes, NULL))
			refused++;
		else
			give(address, NULL);
	}
	CHECK(refused > 0);
	destroy(pool);
}

// Freed memory is available for allocations of its size, in any stream, and for no other size.
static void test_full(void)
{
	void *stream = new_stream();
	void *pool = new_pool();
	uint64_t pieces[most_pieces];
	uint64_t large, small, other;
	int count;

	CHECK_EQUAL(take(&large, pool, 100 * MIB, stream), 0);
	CHECK_EQUAL(take(&small, pool, 75 * MIB / 2, NULL), 0);
	give(large, stream);
	give(small, stream);
	count = fill(pieces);
	for (int i = 0; i < 100; i++) {
		CHECK_EQUAL(take(&large, pool, 100 * MIB, i % 2 ? stream : NULL), 0);
		CHECK_EQUAL(take(&small, pool, 75 * MIB / 2, stream), 0);
		CHECK_EQUAL(take(&other, pool, 100 * MIB, stream), out_of_memory);
		CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), large), 0);
		CHECK_EQUAL(take(&other, pool, 50 * MIB, stream), out_of_memory);
		give(small, NULL);
	}
	empty(pieces, count);
	destroy(pool);
}

// ---- threads that share a pool

static CUcontext context;
static void *shared;

static void *use_shared(void *number)
{
	uint64_t chance = (uint64_t)(uintptr_t)number;
	uint64_t pieces[3];
	void *stream;

	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), context), 0);
	stream = new_stream();
	for (int i = 0; i < rounds; i++) {
		int count = 0;

		for (int j = 0; j < 3; j++) {
			chance = chance * UINT64_C(6364136223846793005) + 1442695040888963407;
			count += !take(&pieces[count], shared, (1 + (chance >> 40) % 3) * 8 * MIB, stream);
		}
		while (count > 0)
			give(pieces[--count], stream);
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t running[threads];
	uint64_t rest;

	CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &rest, left() - 188 * MIB), 0);
	CHECK_EQUAL(CALL("cuCtxGetCurrent", (CUcontext *), &context), 0);
	shared = new_pool();
	for (uintptr_t i = 0; i < threads; i++) {
		void *number = (void *)i;

		CHECK(pthread_create(&running[i], NULL, use_shared, number) == 0);
	}
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(running[i], NULL) == 0);
	destroy(shared);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), rest), 0);
}

// A pool lends no memory of allocations that ended with their context.
static void test_reset(void)
{
	void *pool = new_pool();
	uint64_t pieces[most_pieces];
	uint64_t address;
	int count;

	CHECK_EQUAL(take(&address, pool, 100 * MIB, NULL), 0);
	CHECK_EQUAL(CALL("cuDevicePrimaryCtxReset_v2", (CUdevice), 0), 0);
	use_primary_context();
	count = fill(pieces);
	CHECK_EQUAL(take(&address, pool, 100 * MIB, NULL), out_of_memory);
	empty(pieces, count);
	CHECK_EQUAL(take(&address, pool, 100 * MIB, NULL), 0);
	destroy(pool);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
}

// The container does not have the second device.
static void test_elsewhere(void)
{
	void *pool = new_pool_on(1);
	uint64_t address;

	CHECK_EQUAL(take(&address, pool, 100 * MIB, NULL), out_of_memory);
	destroy(pool);
}

int main(void)
{
	size_t before;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	before = left();
	test_sizes();
	test_full();
	test_threads();
	CHECK_EQUAL(left(), before);
	test_reset();
	CHECK_EQUAL(left(), before);
	test_elsewhere();
	printf("{\"pid\":%d}\n", (int)getpid());
	return 0;
}
