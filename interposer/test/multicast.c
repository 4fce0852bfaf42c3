// SPDX-License-Identifier: Apache-2.0

// multicast checks that memory bound to a multicast object stays charged when its handle and its
// mappings are gone. multicast then allocates all remaining memory. entries_test.sh runs this
// program, and checks its physical memory. With the argument "measured", an agent detects that the
// object has released the memory.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "program.h"
#include "vmm.h"

#define BIND (uint64_t, size_t, uint64_t, size_t, size_t, unsigned long long)
#define BIND_ADDRESS (uint64_t, size_t, uint64_t, size_t, unsigned long long)

enum { bytes = 256 << 20 };

static uint64_t group(void)
{
	const struct {
		unsigned devices;
		size_t size;
		unsigned long long handle_types, flags;
	} properties = {.devices = 1, .size = bytes};
	uint64_t made;

	CHECK_EQUAL(CALL("cuMulticastCreate", (uint64_t *, const void *), &made, &properties), 0);
	CHECK_EQUAL(CALL("cuMulticastAddDevice", (uint64_t, CUdevice), made, 0), 0);
	return made;
}

// bound_memory returns an object with bound memory that only the object holds.
static uint64_t bound_memory(void)
{
	uint64_t made = group();
	uint64_t handle = create(bytes);

	CHECK_EQUAL(CALL("cuMulticastBindMem", BIND, made, 0, handle, 0, bytes, 0), 0);
	release(handle);
	return made;
}

// bound_mapping returns an object with memory that was mapped, and bound by its address.
static uint64_t bound_mapping(void)
{
	uint64_t made = group();
	uint64_t handle = create(bytes);
	uint64_t address = reserve(bytes);

	map(address, bytes, handle);
	release(handle);
	CHECK_EQUAL(CALL("cuMulticastBindAddr", BIND_ADDRESS, made, 0, address + bytes / 2, bytes / 2, 0), 0);
	CHECK_EQUAL(CALL("cuMemUnmap", (uint64_t, size_t), address, bytes), 0);
	return made;
}

// Memory whose binding failed is freed with its handle.
static void test_refused(void)
{
	size_t before = left();
	uint64_t made = group();
	uint64_t handle = create(bytes);

	CHECK_EQUAL(CALL("cuMulticastBindMem", BIND, made, bytes, handle, 0, bytes, 0), 1);
	release(handle);
	CHECK_EQUAL(left(), before);
	release(made);
}

// wait_for waits until this much memory is left. wait_for allocates, so that the agent measures.
static void wait_for(size_t want)
{
	const struct timespec moment = {.tv_nsec = 300000000};
	uint64_t address;

	for (int tries = 0; left() != want && tries < 20; tries++) {
		nanosleep(&moment, NULL);
		CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, 16 * MIB), 0);
		CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
	}
	CHECK_EQUAL(left(), want);
}

static void test_measured(void)
{
	size_t before = left();
	uint64_t groups[2];

	groups[0] = bound_memory();
	CHECK_EQUAL(left(), before - bytes);
	groups[1] = bound_mapping();
	CHECK_EQUAL(left(), before - 2 * (size_t)bytes);
	release(groups[0]);
	wait_for(before - bytes);
	CHECK_EQUAL(CALL("cuMulticastUnbind", (uint64_t, CUdevice, size_t, size_t), groups[1], 0, 0, bytes / 2), 0);
	wait_for(before);
}

int main(int argc, char **argv)
{
	size_t granted = 2 * (size_t)bytes;
	uint64_t address;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	if (argc > 1 && strcmp(argv[1], "measured") == 0) {
		test_measured();
		return 0;
	}
	test_refused();
	bound_memory();
	bound_mapping();
	while (CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, 2 * MIB) == 0)
		granted += 2 * MIB;
	printf("{\"pid\":%d,\"granted_bytes\":%zu}\n", (int)getpid(), granted);
	return 0;
}
