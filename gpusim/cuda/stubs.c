// SPDX-License-Identifier: Apache-2.0
/* Names that programs may look up, but whose calls are not simulated. */
#include "sim.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define STUB(name) \
	CU_API CUresult name(void); \
	CU_API CUresult name(void) \
	{ \
		return CUDA_ERROR_NOT_SUPPORTED; \
	}
#include "cuda_stubs.h"
