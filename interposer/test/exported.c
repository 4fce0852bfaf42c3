// SPDX-License-Identifier: Apache-2.0

// This library exports a symbol of each kind: see loader_test.c.

#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int exported_function(void);
EXPORTED int exported_resolved(void);
extern EXPORTED int exported_data;

int exported_data = 1;

int exported_function(void)
{
	return getppid();
}

static int (*resolve(void))(void)
{
	return exported_function;
}

int exported_resolved(void) __attribute__((ifunc("resolve")));
