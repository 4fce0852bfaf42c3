// SPDX-License-Identifier: Apache-2.0
/* What a machine is to be made of, from files and options. */
#ifndef GPUSIM_CONFIG_H
#define GPUSIM_CONFIG_H

#include "state.h"

struct config {
	struct gs_machine machine;
	struct gs_gpu_config defaults; /* of every GPU */
};

/* A number, and what follows it. */
bool config_number(const char *text, uint64_t *value, const char **rest);

bool config_u32(const char *text, uint32_t *value);

/* Bytes, with an optional unit: 16GiB. */
bool config_size(const char *text, uint64_t *value);

/* Adds a GPU with the defaults; false: there are too many. */
bool config_add_gpu(struct config *config);

/*
 * Reads a file into the configuration. [gpu] lines are errors unless `gpus`.
 * Returns 0, or 1 after saying which line is wrong.
 */
int config_read(struct config *config, const char *path, bool gpus);

#endif
