// SPDX-License-Identifier: Apache-2.0

// This header declares functions of tests that act as a program, which looks up the driver by name.

#ifndef VG_TEST_PROGRAM_H
#define VG_TEST_PROGRAM_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "cuda_abi.h"

#define MIB (UINT64_C(1) << 20)

// CALL calls a function of the driver: CALL("cuMemFree_v2", (CUdeviceptr), address).
#define CALL(name, types, ...) (((CUresult (*) types)find(name))(__VA_ARGS__))

typedef void (*plain_fn)(void);

// find returns a function of libcuda.so.1. A missing function ends the test.
static inline plain_fn find(const char *name)
{
	static void *library;
	plain_fn function;
	void *symbol;

	if (!library)
		library = dlopen("libcuda.so.1", RTLD_NOW);
	CHECK(library);
	symbol = dlsym(library, name);
	if (!symbol)
		fprintf(stderr, "the driver has no %s\n", name);
	CHECK(symbol);
	memcpy(&function, &symbol, sizeof function);
	return function;
}

// use_primary_context makes the first GPU's primary context current.
static inline void use_primary_context(void)
{
	CUcontext context;

	CHECK_EQUAL(CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &context, 0), 0);
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), context), 0);
}

// left returns the free bytes on the current GPU, as reported to the program.
static inline size_t left(void)
{
	size_t available = 0;
	size_t total = 0;

	CHECK_EQUAL(CALL("cuMemGetInfo_v2", (size_t *, size_t *), &available, &total), 0);
	return available;
}

#endif
