// SPDX-License-Identifier: Apache-2.0

// This header declares a small fuzzer. The fuzzer mutates and runs inputs, and keeps the inputs
// that reach code that no earlier input reached. A target reads its input as a stream of choices,
// so that every input is valid.

#ifndef VG_FUZZ_H
#define VG_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct fuzz_input {
	const uint8_t *data;
	size_t size;
};

struct fuzz_target {
	const char *name;
	// run tests one input, and aborts if the code breaks a guarantee.
	void (*run)(struct fuzz_input *input);
};

extern const struct fuzz_target fuzz_limits;
extern const struct fuzz_target fuzz_usage;
extern const struct fuzz_target fuzz_gpu_time;
extern const struct fuzz_target fuzz_image;

// fuzz_bits takes bytes from the input. Bytes beyond the input's end are zero.
uint64_t fuzz_bits(struct fuzz_input *input, size_t bytes);

// fuzz_number takes a number of 64 bits from the input. The number is often near `matters`.
uint64_t fuzz_number(struct fuzz_input *input, uint64_t matters);

// FUZZ_CHECK aborts the program if a guarantee is broken.
#define FUZZ_CHECK(condition)                                                           \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                        \
		}                                                                       \
	} while (0)

#endif
