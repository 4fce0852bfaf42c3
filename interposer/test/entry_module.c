// SPDX-License-Identifier: Apache-2.0

// A test opens this module with RTLD_DEEPBIND, and the module then opens the driver. A second build
// with VG_LINKED is linked to the driver. See entries.c.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "check.h"

__attribute__((visibility("default"))) void *module_find(const char *name);
__attribute__((visibility("default"))) void *module_open(const char *path);

void *module_open(const char *path)
{
	return dlopen(path, RTLD_NOW);
}

#ifdef VG_LINKED

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long *address, unsigned long bytes);
int cuMemFree_v2(unsigned long address);

void *module_find(const char *name)
{
	static const struct {
		const char *name;
		void (*function)(void);
	} functions[] = {
		{"cuInit", (void (*)(void))cuInit},
		{"cuDevicePrimaryCtxRetain", (void (*)(void))cuDevicePrimaryCtxRetain},
		{"cuCtxSetCurrent", (void (*)(void))cuCtxSetCurrent},
		{"cuMemAlloc_v2", (void (*)(void))cuMemAlloc_v2},
		{"cuMemFree_v2", (void (*)(void))cuMemFree_v2},
	};
	void *found = NULL;

	for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++)
		if (strcmp(functions[i].name, name) == 0)
			memcpy(&found, &functions[i].function, sizeof found);
	return found;
}

#else

void *module_find(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | TEST_DEEPBIND);

	return driver ? dlsym(driver, name) : NULL;
}

#endif
