// SPDX-License-Identifier: Apache-2.0
/* This header covers the configuration of a machine, from files and options. */
#ifndef GPUSIM_CONFIG_H
#define GPUSIM_CONFIG_H

#include "state.h"

struct config {
	struct gs_machine machine;
	struct gs_gpu_config defaults; /* of every GPU */
	char problem[128];             /* the error of a line, if the error is known */
};

/* config_add_cost parses "cuLaunchKernel 2983ns". The last line for a call applies. */
bool config_add_cost(struct config *config, char *line);

/*
 * config_add_failure parses "cuEventRecord 999 after 3 count 2". "after" and "count" are optional.
 */
bool config_add_failure(struct config *config, char *line);

/* config_add_gpu adds a GPU with the defaults. config_add_gpu returns false if there are too
 * many. */
bool config_add_gpu(struct config *config);

/*
 * config_read reads a file into the configuration. [gpu] lines are errors unless `gpus` is true.
 * config_read returns 0, or 1 after printing the line and its error.
 */
int config_read(struct config *config, const char *path, bool gpus);

#endif
