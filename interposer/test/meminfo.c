// SPDX-License-Identifier: Apache-2.0

// meminfo LIMIT checks cuMemGetInfo. The total is the limit, and NULL arguments are not an error.
// This process's allocations and frees are visible at once. Then meminfo queries without a pause.
// For each line of input, meminfo prints the free memory that it reads a millisecond later.
// entries_test.sh runs this program, and compares the output with the actual value.

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "program.h"

static int ask(size_t *available, size_t *total)
{
	return CALL("cuMemGetInfo_v2", (size_t *, size_t *), available, total);
}

static void test_nulls(uint64_t limit)
{
	size_t available = 1;
	size_t total = 0;

	CHECK_EQUAL(ask(NULL, NULL), 0);
	CHECK_EQUAL(ask(NULL, &total), 0);
	CHECK_EQUAL(total, limit);
	CHECK_EQUAL(ask(&available, NULL), 0);
	CHECK_EQUAL(available, left());
}

// Version 1 has 32 bits for a value that may be larger.
static void test_narrow(void)
{
	unsigned available = 0;
	unsigned total = 0;

	CHECK_EQUAL(CALL("cuMemGetInfo", (unsigned *, unsigned *), &available, &total), 0);
	CHECK_EQUAL(available, left() < UINT32_MAX ? left() : UINT32_MAX);
	CHECK_EQUAL(total, UINT32_MAX);
}

static void test_own_changes(void)
{
	size_t before = left();

	for (int i = 0; i < 100; i++) {
		CUdeviceptr address;

		CHECK_EQUAL(CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &address, 64 * MIB), 0);
		CHECK_EQUAL(left(), before - 64 * MIB);
		CHECK_EQUAL(CALL("cuMemFree_v2", (CUdeviceptr), address), 0);
		CHECK_EQUAL(left(), before);
	}
}

static void test_without_a_context(void)
{
	enum { invalid_context = 201 };
	CUcontext context = NULL;

	CHECK_EQUAL(CALL("cuCtxPopCurrent_v2", (CUcontext *), &context), 0);
	CHECK_EQUAL(ask(NULL, NULL), invalid_context);
	CHECK_EQUAL(CALL("cuCtxPushCurrent_v2", (CUcontext), context), 0);
}

// ask_until_told returns 1 when a line arrives, and 0 at the end of the input.
static int ask_until_told(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char line;

	while (poll(&input, 1, 0) == 0)
		left();
	return read(STDIN_FILENO, &line, 1) == 1;
}

int main(int argc, char **argv)
{
	uint64_t limit;

	CHECK(argc == 2);
	limit = strtoull(argv[1], NULL, 10);
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	test_nulls(limit);
	test_narrow();
	test_own_changes();
	test_without_a_context();
	while (ask_until_told()) {
		size_t told;

		usleep(1000);
		told = left();
		test_own_changes(); // first, because entries_test.sh then changes the free memory
		printf("{\"free\":%zu}\n", told);
		fflush(stdout);
	}
	return 0;
}
