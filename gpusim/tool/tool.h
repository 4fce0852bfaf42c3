// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_TOOL_H
#define GPUSIM_TOOL_H

#include "state.h"

/*
 * tool_command is a subcommand. A subcommand takes its arguments without the program's name, and
 * returns an exit status.
 */
typedef int (*tool_command)(int argc, char **argv);

int tool_create(int argc, char **argv);
int tool_destroy(int argc, char **argv);
int tool_oracle(int argc, char **argv);
int tool_inject(int argc, char **argv);
int tool_cdi(int argc, char **argv);
int tool_hold(int argc, char **argv);
int tool_mig(int argc, char **argv);

/* tool_open opens dir/state for reading. tool_open returns 0, or -1 after printing the error. */
int tool_open(struct gs_handle *handle, const char *dir);

/* tool_find_gpu returns the GPU with this index or UUID, or -1. */
int tool_find_gpu(const struct gs_state *state, const char *name);

/* tool_json_string prints a text as a JSON string. */
void tool_json_string(const char *text);

#endif
