// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_TOOL_H
#define GPUSIM_TOOL_H

/* A subcommand: its arguments without the program's name, its exit status. */
typedef int (*tool_command)(int argc, char **argv);

int tool_create(int argc, char **argv);
int tool_destroy(int argc, char **argv);

#endif
