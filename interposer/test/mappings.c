// SPDX-License-Identifier: Apache-2.0

// mappings expects that physical memory stays charged for as long as a handle or a
// mapping of it is left, however its handle was obtained and whatever range is
// unmapped. Run by doors_test.sh.

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "driver.h"

#define MIB (UINT64_C(1) << 20)

struct properties {
	int type;
	int handle_types;
	int location_type;
	int location;
	void *unused;
	unsigned char flags[8];
};

typedef int (*init_fn)(unsigned flags);
typedef int (*retain_fn)(void **context, int device);
typedef int (*current_fn)(void *context);
typedef int (*info_fn)(size_t *available, size_t *total);
typedef int (*create_fn)(uint64_t *handle, size_t bytes, const struct properties *properties,
			 unsigned long long flags);
typedef int (*release_fn)(uint64_t handle);
typedef int (*again_fn)(uint64_t *handle, uint64_t address);
typedef int (*reserve_fn)(uint64_t *address, size_t bytes, size_t alignment, uint64_t wish,
			  unsigned long long flags);
typedef int (*map_fn)(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
		      unsigned long long flags);
typedef int (*unmap_fn)(uint64_t address, size_t bytes);

static void start(void)
{
	void *context;

	CHECK_EQUAL(((init_fn)find("cuInit"))(0), 0);
	CHECK_EQUAL(((retain_fn)find("cuDevicePrimaryCtxRetain"))(&context, 0), 0);
	CHECK_EQUAL(((current_fn)find("cuCtxSetCurrent"))(context), 0);
}

static size_t left(void)
{
	size_t available = 0;

	CHECK_EQUAL(((info_fn)find("cuMemGetInfo_v2"))(&available, NULL), 0);
	return available;
}

static uint64_t create(size_t bytes)
{
	const struct properties properties = {.type = 1, .location_type = 1};
	uint64_t handle;

	CHECK_EQUAL(((create_fn)find("cuMemCreate"))(&handle, bytes, &properties, 0), 0);
	return handle;
}

static void release(uint64_t handle)
{
	CHECK_EQUAL(((release_fn)find("cuMemRelease"))(handle), 0);
}

static uint64_t reserve(size_t bytes)
{
	uint64_t address;

	CHECK_EQUAL(((reserve_fn)find("cuMemAddressReserve"))(&address, bytes, 0, 0, 0), 0);
	return address;
}

static void map(uint64_t address, size_t bytes, uint64_t handle)
{
	CHECK_EQUAL(((map_fn)find("cuMemMap"))(address, bytes, 0, handle, 0), 0);
}

static void unmap(uint64_t address, size_t bytes)
{
	CHECK_EQUAL(((unmap_fn)find("cuMemUnmap"))(address, bytes), 0);
}

static uint64_t again(uint64_t address)
{
	uint64_t handle;

	CHECK_EQUAL(((again_fn)find("cuMemRetainAllocationHandle"))(&handle, address), 0);
	return handle;
}

// A handle may be asked for by any address of a mapping.
static void test_handle_of_a_mapping(uint64_t offset)
{
	size_t before = left();
	uint64_t address = reserve(64 * MIB);
	uint64_t handle = create(64 * MIB);

	map(address, 64 * MIB, handle);
	release(handle);
	handle = again(address + offset);
	unmap(address, 64 * MIB);
	CHECK_EQUAL(left(), before - 64 * MIB);
	release(handle);
	CHECK_EQUAL(left(), before);
}

static void test_handle_that_is_held_twice(void)
{
	size_t before = left();
	uint64_t address = reserve(64 * MIB);
	uint64_t handle = create(64 * MIB);

	map(address, 64 * MIB, handle);
	CHECK_EQUAL(again(address), handle);
	unmap(address, 64 * MIB);
	release(handle);
	CHECK_EQUAL(left(), before - 64 * MIB);
	release(handle);
	CHECK_EQUAL(left(), before);
}

// What goes beyond the range stays mapped.
static void test_range_that_ends_in_a_mapping(void)
{
	size_t before = left();
	uint64_t address = reserve(96 * MIB);
	uint64_t first = create(32 * MIB);
	uint64_t second = create(64 * MIB);

	map(address, 32 * MIB, first);
	map(address + 32 * MIB, 64 * MIB, second);
	release(first);
	release(second);
	unmap(address, 64 * MIB);
	CHECK_EQUAL(left(), before - 64 * MIB);
	unmap(address, 96 * MIB);
	CHECK_EQUAL(left(), before);
}

int main(void)
{
	start();
	test_handle_of_a_mapping(0);
	test_handle_of_a_mapping(2 * MIB);
	test_handle_that_is_held_twice();
	test_range_that_ends_in_a_mapping();
	return 0;
}
