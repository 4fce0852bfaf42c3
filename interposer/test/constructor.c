// SPDX-License-Identifier: Apache-2.0

// The constructor of this library allocates with CUDA, and the destructor frees the memory. At its
// end, the constructor sets CONSTRUCTED in the program's environment.

#include <stdint.h>
#include <stdlib.h>

#include "check.h"
#include "program.h"

enum { driver_shut_down = 4 }; // CUDA_ERROR_DEINITIALIZED

static uint64_t address;

__attribute__((constructor)) static void use_cuda(void)
{
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, MIB), 0);
	CHECK(setenv("CONSTRUCTED", "yes", 1) == 0);
}

__attribute__((destructor)) static void give_back(void)
{
	CUresult freed = CALL("cuMemFree_v2", (uint64_t), address);

	if (freed == driver_shut_down)
		return;
	CHECK_EQUAL(freed, 0);
	CHECK_EQUAL(CALL("cuDevicePrimaryCtxRelease_v2", (CUdevice), 0), 0);
}
