// SPDX-License-Identifier: Apache-2.0

// This test covers the contexts and devices of handles and locations.

#include "driver/handle.h"

#include "check.h"
#include "stand_in.h"

static CUcontext const context = (CUcontext)(uintptr_t)0x1000;

static struct {
	CUresult answer;
	CUdevice current;
} driver;

static CUresult driver_device(CUdevice *device)
{
	*device = driver.current;
	return driver.answer;
}

static CUresult driver_context(CUcontext *current)
{
	*current = context;
	return driver.answer;
}

static void test_the_current_context(void)
{
	driver.answer = CUDA_ERROR_NOT_FOUND;
	CHECK_EQUAL(vg_handle_context(), 0);
	driver.answer = CUDA_SUCCESS;
	CHECK_EQUAL(vg_handle_context(), vg_handle_key(context));
}

static void test_where_memory_lies(void)
{
	const struct {
		CUmemLocation location;
		CUresult answer;
		bool charged;
		CUdevice device;
	} cases[] = {
		{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CUDA_SUCCESS, true, 1},
		{{CU_MEM_LOCATION_TYPE_HOST, 1}, CUDA_SUCCESS, false, 2},
		{{CU_MEM_LOCATION_TYPE_HOST_NUMA, 1}, CUDA_SUCCESS, false, 2},
		{{CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 1}, CUDA_SUCCESS, false, 2},
		{{CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT + 1, 1}, CUDA_SUCCESS, true, 2}, // unknown
		{{0, 1}, CUDA_SUCCESS, true, 2},
		{{0, 1}, CUDA_ERROR_NOT_FOUND, true, 0},
	};

	driver.current = 2;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		CUdevice device = -1;

		driver.answer = cases[i].answer;
		CHECK_EQUAL(vg_handle_location(&cases[i].location, &device), cases[i].charged);
		CHECK_EQUAL(device, cases[i].device);
	}
}

int main(void)
{
	DRIVER(cuCtxGetDevice, driver_device);
	DRIVER(cuCtxGetCurrent, driver_context);
	test_the_current_context();
	test_where_memory_lies();
	return 0;
}
