// SPDX-License-Identifier: Apache-2.0

// pools expects that a pool which the program destroys while some of it is in use
// stays charged until the last piece has been freed, and no longer. Run by
// doors_test.sh.

#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "driver.h"

#define MIB (UINT64_C(1) << 20)

struct pool_properties {
	int type;
	int handle_types;
	int location_type;
	int location;
	void *unused;
	size_t most;
	unsigned char reserved[56];
};

typedef int (*init_fn)(unsigned flags);
typedef int (*retain_fn)(void **context, int device);
typedef int (*one_fn)(void *object);
typedef int (*info_fn)(size_t *available, size_t *total);
typedef int (*stream_fn)(void **stream, unsigned flags);
typedef int (*create_fn)(void **pool, const struct pool_properties *properties);
typedef int (*alloc_fn)(uint64_t *address, size_t bytes, void *pool, void *stream);
typedef int (*give_fn)(uint64_t address, void *stream);
typedef int (*free_fn)(uint64_t address);
typedef int (*host_fn)(void *stream, void (*function)(void *data), void *data);

static void *new_stream(void)
{
	void *stream = NULL;

	CHECK_EQUAL(((stream_fn)find("cuStreamCreate"))(&stream, 1), 0);
	return stream;
}

static size_t left(void)
{
	size_t available = 0;
	size_t total = 0;

	CHECK_EQUAL(((info_fn)find("cuMemGetInfo_v2"))(&available, &total), 0);
	return available;
}

static void synchronize(void *stream)
{
	CHECK_EQUAL(((one_fn)find("cuStreamSynchronize"))(stream), 0);
}

static void *new_pool(void)
{
	struct pool_properties properties = {.type = 1, .location_type = 1};
	void *pool = NULL;

	CHECK_EQUAL(((create_fn)find("cuMemPoolCreate"))(&pool, &properties), 0);
	return pool;
}

static uint64_t take(void *pool, size_t bytes, void *stream)
{
	uint64_t address = 0;

	CHECK_EQUAL(((alloc_fn)find("cuMemAllocFromPoolAsync"))(&address, bytes, pool, stream), 0);
	return address;
}

static void give(uint64_t address, void *stream)
{
	CHECK_EQUAL(((give_fn)find("cuMemFreeAsync"))(address, stream), 0);
}

static void test_pieces(void *stream)
{
	size_t before = left();
	void *pool = new_pool();
	uint64_t first = take(pool, 64 * MIB, stream);
	uint64_t second = take(pool, 32 * MIB, stream);

	CHECK_EQUAL(((one_fn)find("cuMemPoolDestroy"))(pool), 0);
	CHECK_EQUAL(left(), before - 96 * MIB);
	give(first, stream);
	synchronize(stream);
	CHECK(left() <= before - 32 * MIB);
	CHECK_EQUAL(((free_fn)find("cuMemFree_v2"))(second), 0);
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

// What a stream has yet to free is there, whatever other streams have done.
static void test_busy_stream(void *stream, void *other)
{
	size_t before = left();
	void *pool = new_pool();
	uint64_t address = take(pool, 64 * MIB, stream);

	CHECK_EQUAL(((one_fn)find("cuMemPoolDestroy"))(pool), 0);
	CHECK_EQUAL(((host_fn)find("cuLaunchHostFunc"))(stream, wait_until_opened, NULL), 0);
	give(address, stream);
	synchronize(other);
	CHECK_EQUAL(left(), before - 64 * MIB);
	atomic_store(&opened, 1);
	synchronize(stream);
	CHECK_EQUAL(left(), before);
}

// The record of a pool that is gone is there for the next.
static void test_many(void *stream)
{
	size_t before = left();

	for (int i = 0; i < 600; i++) {
		void *pool = new_pool();
		uint64_t address = take(pool, 2 * MIB, stream);

		CHECK_EQUAL(((one_fn)find("cuMemPoolDestroy"))(pool), 0);
		give(address, stream);
		synchronize(stream);
	}
	CHECK_EQUAL(left(), before);
}

int main(void)
{
	void *context;
	void *stream;

	CHECK_EQUAL(((init_fn)find("cuInit"))(0), 0);
	CHECK_EQUAL(((retain_fn)find("cuDevicePrimaryCtxRetain"))(&context, 0), 0);
	CHECK_EQUAL(((one_fn)find("cuCtxSetCurrent"))(context), 0);
	stream = new_stream();
	test_pieces(stream);
	test_busy_stream(stream, new_stream());
	test_many(stream);
	return 0;
}
