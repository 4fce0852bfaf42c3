// SPDX-License-Identifier: Apache-2.0

// CHECK ends the program if a condition does not hold.

#ifndef TEST_PROGRAMS_CHECK_H
#define TEST_PROGRAMS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                         \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			_Exit(1);                                                \
		}                                                                \
	} while (0)

#define MIB ((size_t)1 << 20)

#endif
