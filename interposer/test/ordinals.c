// SPDX-License-Identifier: Apache-2.0

// ordinals requests memory and contexts on devices that do not exist, and expects the native error.
// On the second device, ordinals expects the error in its argument. ordinals skips functions of a
// CUDA version later than the driver's, and prints their names. If the interposer replaces a
// skipped function, the function must return "not supported". entries_test.sh runs this program.

#define _GNU_SOURCE
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "program.h"

enum { second = 1 };

static const int absent[] = {2, 7, 15, 16, 64, INT_MAX, -1, INT_MIN};

static CUresult create(int device)
{
	const CUmemAllocationProp properties = {
		.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
	uint64_t handle;
	CUresult result = CALL("cuMemCreate",
			       (uint64_t *, size_t, const CUmemAllocationProp *, unsigned long long),
			       &handle, 2 * MIB, &properties, 0);

	if (!result)
		CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), handle), 0);
	return result;
}

static CUresult end(CUresult result, const CUcontext *made)
{
	return result ? result : CALL("cuCtxDestroy_v2", (CUcontext), *made);
}

static CUresult context(int device)
{
	CUcontext made = NULL;

	return end(CALL("cuCtxCreate_v2", (CUcontext *, unsigned, CUdevice), &made, 0, device), &made);
}

static CUresult context_v3(int device)
{
	CUcontext made = NULL;

	return end(CALL("cuCtxCreate_v3", (CUcontext *, void *, int, unsigned, CUdevice), &made, NULL, 0, 0,
			device), &made);
}

static CUresult context_v4(int device)
{
	CUcontext made = NULL;

	return end(CALL("cuCtxCreate_v4", (CUcontext *, void *, unsigned, CUdevice), &made, NULL, 0, device),
		   &made);
}

static CUresult primary(int device)
{
	CUcontext retained;
	CUresult result = CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &retained, device);

	return result ? result : CALL("cuDevicePrimaryCtxRelease_v2", (CUdevice), device);
}

static CUresult pool(int device)
{
	CUmemPoolProps properties = {
		.allocType = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
	CUmemoryPool made;
	CUresult result;

	result = CALL("cuMemPoolCreate", (CUmemoryPool *, const CUmemPoolProps *), &made, &properties);
	return result ? result : CALL("cuMemPoolDestroy", (CUmemoryPool), made);
}

static CUresult default_pool(int device)
{
	CUmemoryPool its;

	return CALL("cuDeviceGetDefaultMemPool", (CUmemoryPool *, CUdevice), &its, device);
}

static const struct {
	const char *name;
	CUresult (*ask)(int device);
	bool takes; // the call takes memory of the device
	int since;  // the CUDA version that added the function
} ways[] = {
	{"cuMemCreate", create, true, 10020}, {"cuCtxCreate_v2", context, true, 3020},
	{"cuCtxCreate_v3", context_v3, true, 11040}, {"cuCtxCreate_v4", context_v4, true, 12050},
	{"cuDevicePrimaryCtxRetain", primary, true, 7000}, {"cuMemPoolCreate", pool, false, 11020},
	{"cuDeviceGetDefaultMemPool", default_pool, false, 11020},
};

static int expect(size_t way, int device, CUresult want)
{
	CUresult got = ways[way].ask(device);

	if (got != want)
		fprintf(stderr, "%s for device %d: %d, want %d\n", ways[way].name, device, (int)got,
			(int)want);
	return got != want;
}

static int leave_out(size_t way)
{
	printf("skipped: %s, which this driver does not have\n", ways[way].name);
	if (!dlsym(dlopen("libcuda.so.1", RTLD_NOW), ways[way].name))
		return 0;
	return expect(way, 0, CUDA_ERROR_NOT_SUPPORTED);
}

int main(int argc, char **argv)
{
	int wrong = 0;
	int version;

	CHECK_EQUAL(argc, 2);
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	CHECK_EQUAL(CALL("cuDriverGetVersion", (int *), &version), 0);
	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
		if (ways[way].since > version) {
			wrong += leave_out(way);
			continue;
		}
		for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
			wrong += expect(way, absent[i], CUDA_ERROR_INVALID_DEVICE);
		wrong += expect(way, 0, CUDA_SUCCESS);
		if (ways[way].takes)
			wrong += expect(way, second, (CUresult)atoi(argv[1]));
	}
	return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
