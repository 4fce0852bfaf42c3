// SPDX-License-Identifier: Apache-2.0
/* This file implements the options of the compiler and the linker that have output values. */
#include "jit.h"

#include <string.h>

enum {
	JIT_WALL_TIME = 2,
	JIT_INFO_LOG = 3,
	JIT_INFO_LOG_BYTES = 4,
	JIT_ERROR_LOG = 5,
	JIT_ERROR_LOG_BYTES = 6,
	JIT_OPTIONS = 36, /* number of options in CUDA 13.0 */
};

const struct sim_jit sim_no_jit;

CUresult sim_jit_read(struct sim_jit *jit, unsigned count, const int *options, void **values)
{
	*jit = (struct sim_jit){.start_ns = gs_now()};
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		int option = options[i];
		int log = option >= JIT_ERROR_LOG;

		if (option < 0 || option >= JIT_OPTIONS)
			return CUDA_ERROR_INVALID_VALUE;
		if (option == JIT_WALL_TIME)
			jit->wall = &values[i];
		if (option == JIT_INFO_LOG || option == JIT_ERROR_LOG)
			jit->log[log] = values[i];
		if (option == JIT_INFO_LOG_BYTES || option == JIT_ERROR_LOG_BYTES) {
			jit->log_bytes[log] = &values[i];
			jit->room[log] = (unsigned)(uintptr_t)values[i];
		}
	}
	return CUDA_SUCCESS;
}

static void write_log(const struct sim_jit *jit, int log, const char *text)
{
	size_t room = jit->log[log] ? jit->room[log] : 0;
	size_t length = strlen(text);

	if (room && length >= room)
		length = room - 1;
	if (room) {
		memcpy(jit->log[log], text, length);
		jit->log[log][length] = 0;
	}
	if (jit->log_bytes[log])
		*jit->log_bytes[log] = (void *)(uintptr_t)(room ? length : 0);
}

void sim_jit_report(const struct sim_jit *jit, const char *info, const char *error)
{
	float ms = (float)(gs_now() - jit->start_ns) / 1e6f;

	write_log(jit, 0, info);
	write_log(jit, 1, error);
	if (jit->wall)
		memcpy(jit->wall, &ms, sizeof(ms));
}
