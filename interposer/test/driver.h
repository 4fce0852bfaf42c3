// SPDX-License-Identifier: Apache-2.0

// How tests that play a program find the driver: by its name, as programs do.
#ifndef VG_TEST_DRIVER_H
#define VG_TEST_DRIVER_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

typedef void (*plain_fn)(void);

// find gives a function of libcuda.so.1; one that is missing ends the test.
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

#endif
