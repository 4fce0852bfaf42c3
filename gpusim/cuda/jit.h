// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_JIT_H
#define GPUSIM_JIT_H

#include "sim.h"

#define SIM_LOG_SIZE 256

/*
 * sim_jit holds the outputs that a program requests of a compilation. Sizes and times are written
 * to the array of values, which the program owns.
 */
struct sim_jit {
	void **wall;         /* a float, milliseconds */
	char *log[2];        /* infos and errors */
	void **log_bytes[2]; /* on entry, the room; on return, the bytes written */
	uint64_t room[2];
	uint64_t start_ns;
};

extern const struct sim_jit sim_no_jit;

/* sim_jit_read reads the options. sim_jit_read returns CUDA_ERROR_INVALID_VALUE for an unknown
 * option. */
CUresult sim_jit_read(struct sim_jit *jit, unsigned count, const int *options, void **values);

/* sim_jit_report writes the outputs of the options. */
void sim_jit_report(const struct sim_jit *jit, const char *info, const char *error);

#endif
