// SPDX-License-Identifier: Apache-2.0

// pools destroys pools in use. pools checks that a destroyed pool stays charged exactly until the
// pool's last allocation is freed. entries_test.sh runs this program.

#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "program.h"

static void *new_stream(void)
{
	void *stream = NULL;

	CHECK_EQUAL(CALL("cuStreamCreate", (void **, unsigned), &stream, 1), 0);
	return stream;
}

static void synchronize(void *stream)
{
	CHECK_EQUAL(CALL("cuStreamSynchronize", (void *), stream), 0);
}

static void *new_pool(void)
{
	const CUmemPoolProps properties = {.allocType = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	void *pool = NULL;

	CHECK_EQUAL(CALL("cuMemPoolCreate", (void **, const CUmemPoolProps *), &pool, &properties), 0);
	return pool;
}

static uint64_t take(void *pool, size_t bytes, void *stream)
{
	uint64_t address = 0;

	CHECK_EQUAL(CALL("cuMemAllocFromPoolAsync", (uint64_t *, size_t, void *, void *), &address, bytes, pool, stream), 0);
	return address;
}

static void give(uint64_t address, void *stream)
{
	CHECK_EQUAL(CALL("cuMemFreeAsync", (uint64_t, void *), address, stream), 0);
}

static void test_pieces(void *stream)
{
	size_t before = left();
	void *pool = new_pool();
	uint64_t first = take(pool, 64 * MIB, stream);
	uint64_t second = take(pool, 32 * MIB, stream);

	CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
	CHECK_EQUAL(left(), before - 96 * MIB);
	give(first, stream);
	synchronize(stream);
	CHECK(left() <= before - 32 * MIB);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), second), 0);
	synchronize(stream);
	CHECK_EQUAL(left(), before);
}

static _Atomic int opened;

static void wait_until_opened(void *data)
{
	const struct timespec nap = {.tv_nsec = 1000000};

	(void)data;
	while (!atomic_load(&opened))
		nanosleep(&nap, NULL);
}

// Memory that a stream has yet to free stays charged, whatever other streams have done.
static void test_busy_stream(void *stream, void *other)
{
	size_t before = left();
	void *pool = new_pool();
	uint64_t address = take(pool, 64 * MIB, stream);

	CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
	CHECK_EQUAL(CALL("cuLaunchHostFunc", (void *, void (*)(void *), void *), stream, wait_until_opened, NULL), 0);
	give(address, stream);
	synchronize(other);
	CHECK_EQUAL(left(), before - 64 * MIB);
	atomic_store(&opened, 1);
	synchronize(stream);
	CHECK_EQUAL(left(), before);
}

// The record of an ended pool is reused.
static void test_many(void *stream)
{
	size_t before = left();

	for (int i = 0; i < 600; i++) {
		void *pool = new_pool();
		uint64_t address = take(pool, 2 * MIB, stream);

		CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
		give(address, stream);
		synchronize(stream);
	}
	CHECK_EQUAL(left(), before);
}

// An allocation of a destroyed pool is freed in a stream outside the thread's context.
static void test_another_context(void)
{
	void *pool = new_pool();
	CUcontext primary, context;
	uint64_t address;
	size_t before;
	void *stream;

	CHECK_EQUAL(CALL("cuCtxGetCurrent", (CUcontext *), &primary), 0);
	CHECK_EQUAL(CALL("cuCtxCreate_v2", (CUcontext *, unsigned, CUdevice), &context, 0, 0), 0);
	stream = new_stream();
	before = left();
	address = take(pool, 64 * MIB, stream);
	CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), primary), 0);
	give(address, stream);
	synchronize(stream);
	CHECK_EQUAL(left(), before);
	CHECK_EQUAL(CALL("cuCtxDestroy_v2", (CUcontext), context), 0);
}

// The driver frees the last piece of a destroyed pool and reuses its handle. A stream
// has not reached an earlier free of the destroyed pool yet.
static void test_handles(void *stream)
{
	size_t before = left();

	for (int i = 0; i < 40; i++) {
		void *pool = new_pool();
		uint64_t pieces[3];

		for (size_t j = 0; j < 3; j++)
			pieces[j] = take(pool, (4 + j) * MIB, stream);
		give(pieces[2], stream);
		CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
		give(pieces[1], stream);
		give(pieces[0], stream);
	}
	synchronize(stream);
	CHECK_EQUAL(left(), before);
}

// The process has many pools with memory.
static void test_live(void *stream)
{
	enum { count = 300 };
	static void *pools[count];
	static uint64_t addresses[count];
	size_t before = left();

	for (int i = 0; i < count; i++) {
		pools[i] = new_pool();
		addresses[i] = take(pools[i], MIB, stream);
	}
	CHECK_EQUAL(left(), before - count * 2 * MIB);
	for (int i = 0; i < count; i++) {
		give(addresses[i], stream);
		CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pools[i]), 0);
	}
	synchronize(stream);
	CHECK_EQUAL(left(), before);
}

// A destroyed pool's memory ends with its context.
static void test_ends(void)
{
	size_t before = left();

	for (int i = 0; i < 20; i++) {
		for (int j = 0; j < 2; j++) {
			void *pool = new_pool();

			take(pool, 64 * MIB, NULL);
			CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
		}
		if (i % 2)
			CHECK_EQUAL(CALL("cuDevicePrimaryCtxReset_v2", (CUdevice), 0), 0);
		else // the last iteration
			CHECK_EQUAL(CALL("cuDevicePrimaryCtxRelease_v2", (CUdevice), 0), 0);
		use_primary_context();
	}
	CHECK_EQUAL(left(), before);
}

int main(void)
{
	void *stream;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	stream = new_stream();
	test_pieces(stream);
	test_busy_stream(stream, new_stream());
	test_many(stream);
	test_handles(stream);
	test_live(stream);
	test_another_context();
	test_ends();
	return 0;
}
