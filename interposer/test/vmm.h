// SPDX-License-Identifier: Apache-2.0

// This header declares functions of tests that use virtual memory management as a program.

#ifndef VG_TEST_VMM_H
#define VG_TEST_VMM_H

#include "program.h"

#define CREATE (uint64_t *, size_t, const CUmemAllocationProp *, unsigned long long)

static inline uint64_t create(size_t bytes)
{
	const CUmemAllocationProp properties = {.type = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	uint64_t handle;

	CHECK_EQUAL(CALL("cuMemCreate", CREATE, &handle, bytes, &properties, 0), 0);
	return handle;
}

static inline void release(uint64_t handle)
{
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), handle), 0);
}

static inline uint64_t reserve(size_t bytes)
{
	uint64_t address;

	CHECK_EQUAL(CALL("cuMemAddressReserve", (uint64_t *, size_t, size_t, uint64_t, unsigned long long), &address,
			 bytes, 0, 0, 0), 0);
	return address;
}

static inline void map(uint64_t address, size_t bytes, uint64_t handle)
{
	CHECK_EQUAL(CALL("cuMemMap", (uint64_t, size_t, size_t, uint64_t, unsigned long long), address, bytes, 0,
			 handle, 0), 0);
}

#endif
