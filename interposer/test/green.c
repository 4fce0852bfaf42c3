// SPDX-License-Identifier: Apache-2.0

// green checks that memory that was allocated in a green context stays charged when the green context
// ends, until the primary context ends. entries_test.sh runs this program.

#define _GNU_SOURCE
#include <stdint.h>

#include "check.h"
#include "program.h"

enum { bytes = 128 << 20 };

static CUgreenCtx green_context(CUcontext *context)
{
	CUdevResource resource = {0};
	CUdevResourceDesc description;
	CUgreenCtx green;

	CHECK_EQUAL(CALL("cuDeviceGetDevResource", (CUdevice, CUdevResource *, int), 0, &resource, 1), 0);
	CHECK_EQUAL(CALL("cuDevResourceGenerateDesc", (CUdevResourceDesc *, CUdevResource *, unsigned), &description,
			 &resource, 1), 0);
	CHECK_EQUAL(CALL("cuGreenCtxCreate", (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned), &green,
			 description, 0, 1), 0);
	CHECK_EQUAL(CALL("cuCtxFromGreenCtx", (CUcontext *, CUgreenCtx), context, green), 0);
	return green;
}

static void set_current(CUcontext context)
{
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), context), 0);
}

int main(void)
{
	CUcontext context;
	CUgreenCtx green;
	uint64_t address;
	size_t before;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	before = left();
	green = green_context(&context);
	set_current(context);
	CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, bytes), 0);
	set_current(NULL);
	CHECK_EQUAL(CALL("cuGreenCtxDestroy", (CUgreenCtx), green), 0);
	CHECK_EQUAL(CALL("cuDevicePrimaryCtxRelease_v2", (CUdevice), 0), 0);
	use_primary_context();
	CHECK_EQUAL(left(), before);
	return 0;
}
