// SPDX-License-Identifier: Apache-2.0
/* gpusim: makes, removes and looks into a machine's simulated GPUs. */
#include "tool.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	tool_command run;
	const char *usage;
} commands[] = {
	{"create", tool_create,
	 "create [--config FILE] [--gpus N] [--memory SIZE] [--seed N] DIR   make DIR/state and DIR/gpu*"},
	{"destroy", tool_destroy, "destroy DIR   remove them"},
	{"oracle", tool_oracle,
	 "oracle [--json] [--watch] [--interval SECONDS] DIR   what each process truly holds and used"},
	{"inject", tool_inject,
	 "inject [--gpu INDEX|UUID] FAULT [VALUE] DIR   make a GPU fail (no FAULT: list them)"},
	{"cdi", tool_cdi,
	 "cdi --driver-dir DIR --device-dir DIR [--library-dir DIR]   print a CDI spec of the GPUs"},
};

static int usage(FILE *out)
{
	fprintf(out, "usage: gpusim COMMAND …\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(out, "  gpusim %s\n", commands[i].usage);
	return out == stdout ? 0 : 2;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return usage(stderr);
	if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0)
		return usage(stdout);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	fprintf(stderr, "gpusim: no command %s\n", argv[1]);
	return usage(stderr);
}
