// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_JIT_H
#define GPUSIM_JIT_H

#include "sim.h"

#define SIM_LOG_SIZE 256

/*
 * What a program wants to hear of a compilation. Sizes and times go back into
 * the array of values, which stays the program's.
 */
struct sim_jit {
	void **wall;         /* a float, milliseconds */
	char *log[2];        /* infos and errors */
	void **log_bytes[2]; /* in: room; out: what was written */
	uint64_t room[2];
	uint64_t start_ns;
};

extern const struct sim_jit sim_no_jit;

/* Reads the options; CUDA_ERROR_INVALID_VALUE for one that there is not. */
CUresult sim_jit_read(struct sim_jit *jit, unsigned count, const int *options, void **values);

/* Answers them. */
void sim_jit_report(const struct sim_jit *jit, const char *info, const char *error);

#endif
