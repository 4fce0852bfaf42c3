// SPDX-License-Identifier: Apache-2.0
/* Programs may look up the names in this file, but the calls are not simulated. */
#include "sim.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define STUB(name) \
	CU_API CUresult name(void); \
	CU_API CUresult name(void) \
	{ \
		return CUDA_ERROR_NOT_SUPPORTED; \
	}
#include "cuda_stubs.h"
