// SPDX-License-Identifier: Apache-2.0

// This header covers checks for tests. A failed check prints its place and ends the program.

#ifndef VG_TEST_CHECK_H
#define VG_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

// The sanitizers' libraries reject RTLD_DEEPBIND.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_DEEPBIND 0
#else
#define TEST_DEEPBIND RTLD_DEEPBIND
#endif

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                      \
		}                                                                     \
	} while (0)

#define CHECK_EQUAL(got, want)                                                           \
	do {                                                                             \
		long long got_ = (long long)(got);                                       \
		long long want_ = (long long)(want);                                     \
                                                                                         \
		if (got_ != want_) {                                                     \
			fprintf(stderr, "%s:%d: %s is %lld, want %lld\n", __FILE__,      \
				__LINE__, #got, got_, want_);                            \
			abort();                                                         \
		}                                                                        \
	} while (0)

#endif
