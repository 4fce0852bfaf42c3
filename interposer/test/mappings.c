// SPDX-License-Identifier: Apache-2.0

// mappings checks that physical memory stays charged as long as a handle or a mapping of the memory
// exists. The test obtains handles in each way, and unmaps various ranges. entries_test.sh runs this
// program.

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "program.h"

#define CREATE (uint64_t *, size_t, const CUmemAllocationProp *, unsigned long long)
#define RESERVE (uint64_t *, size_t, size_t, uint64_t, unsigned long long)
#define MAP (uint64_t, size_t, size_t, uint64_t, unsigned long long)

static uint64_t create(size_t bytes)
{
	const CUmemAllocationProp properties = {.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	uint64_t handle;

	CHECK_EQUAL(CALL("cuMemCreate", CREATE, &handle, bytes, &properties, 0), 0);
	return handle;
}

static void release(uint64_t handle)
{
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), handle), 0);
}

static uint64_t reserve(size_t bytes)
{
	uint64_t address;

	CHECK_EQUAL(CALL("cuMemAddressReserve", RESERVE, &address, bytes, 0, 0, 0), 0);
	return address;
}

static void map(uint64_t address, size_t bytes, uint64_t handle)
{
	CHECK_EQUAL(CALL("cuMemMap", MAP, address, bytes, 0, handle, 0), 0);
}

static void unmap(uint64_t address, size_t bytes)
{
	CHECK_EQUAL(CALL("cuMemUnmap", (uint64_t, size_t), address, bytes), 0);
}

static uint64_t again(uint64_t address)
{
	uint64_t handle;

	CHECK_EQUAL(CALL("cuMemRetainAllocationHandle", (uint64_t *, uint64_t), &handle, address), 0);
	return handle;
}

// Any address of a mapping can be used to request the handle.
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

// The part beyond the range stays mapped.
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
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	test_handle_of_a_mapping(0);
	test_handle_of_a_mapping(2 * MIB);
	test_handle_that_is_held_twice();
	test_range_that_ends_in_a_mapping();
	return 0;
}
