// SPDX-License-Identifier: Apache-2.0
/* What a machine is to be made of, from files and options. */
#ifndef GPUSIM_CONFIG_H
#define GPUSIM_CONFIG_H

#include "state.h"

struct config {
	struct gs_machine machine;
	struct gs_gpu_config defaults; /* of every GPU */
	char problem[128];             /* what is wrong with a line, if more is known than that */
};

/* A number, and what follows it. */
bool config_number(const char *text, uint64_t *value, const char **rest);

bool config_u32(const char *text, uint32_t *value);

/* Bytes, with an optional unit: 16GiB. */
bool config_size(const char *text, uint64_t *value);

/* A time, with an optional unit: 14ms. */
bool config_time(const char *text, uint64_t *ns);

/* "cuLaunchKernel 2983ns": the last line of a call counts. */
bool config_add_cost(struct config *config, char *line);

/* "cuEventRecord 999 after 3 count 2", the last two in any order or absent. */
bool config_add_failure(struct config *config, char *line);

/* Adds a GPU with the defaults; false: there are too many. */
bool config_add_gpu(struct config *config);

/*
 * Reads a file into the configuration. [gpu] lines are errors unless `gpus`.
 * Returns 0, or 1 after printing what is wrong with which line.
 */
int config_read(struct config *config, const char *path, bool gpus);

#endif
