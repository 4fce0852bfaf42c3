// SPDX-License-Identifier: Apache-2.0
/* This test covers the driver's state in exit handlers, with a driver that also has an exit handler
 * (exit_test.conf). */
#include "harness.h"

#include <stdlib.h>
#include <unistd.h>

static CUdeviceptr pieces[2];

static void expect_shut_down(void)
{
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuInit, unsigned);

	if (cuMemFree_v2(pieces[0]) != CUDA_ERROR_DEINITIALIZED || cuInit(0) != CUDA_ERROR_DEINITIALIZED)
		_exit(1);
}

static void expect_answers(void)
{
	DRIVER(cuMemFree_v2, CUdeviceptr);

	if (cuMemFree_v2(pieces[1]) != CUDA_SUCCESS)
		_exit(2);
}

static void earlier_handlers_find_it_shut_down(void *unused)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);

	(void)unused;
	CHECK(atexit(expect_shut_down) == 0);
	begin();
	CHECK(atexit(expect_answers) == 0);
	OK(cuMemAlloc_v2(&pieces[0], MIB));
	OK(cuMemAlloc_v2(&pieces[1], MIB));
}

int main(void)
{
	finish(start(earlier_handlers_find_it_shut_down, NULL));
	gs_lock(observer());
	gs_reap(observer());
	gs_unlock(observer());
	CHECK(used(0) == 0);
	return 0;
}
