// SPDX-License-Identifier: Apache-2.0

// This library opens another library through its own RUNPATH: see stub_test.c.

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

__attribute__((visibility("default"))) int outer(void);

int outer(void)
{
	void *library = dlopen("inner.so", RTLD_NOW);
	void *symbol = library ? dlsym(library, "inner") : NULL;
	int (*inner)(void);

	if (!symbol)
		return -1;
	memcpy(&inner, &symbol, sizeof inner);
	return inner();
}
