// SPDX-License-Identifier: Apache-2.0
/*
 * This file defines every name that the driver's NVML exports. Functions that are not simulated
 * return NVML_ERROR_NOT_SUPPORTED. The stubs are weak, so that a definition in another file
 * replaces them. nvml_stubs.h is generated from the list of exported names.
 */
#include "nvml_abi.h"

#define STUB(name)                                                                    \
	__attribute__((weak, visibility("default"))) nvmlReturn_t name(void);         \
	nvmlReturn_t name(void)                                                       \
	{                                                                             \
		return NVML_ERROR_NOT_SUPPORTED;                                      \
	}

#include "nvml_stubs.h"
