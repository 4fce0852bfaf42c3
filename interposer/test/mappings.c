// SPDX-License-Identifier: Apache-2.0

// mappings checks that physical memory stays charged as long as a handle or a mapping of the memory
// exists. The test obtains handles in each way, and unmaps various ranges. entries_test.sh runs this
// program.

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "program.h"
#include "vmm.h"

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
