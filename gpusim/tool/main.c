// SPDX-License-Identifier: Apache-2.0
/* gpusim creates, removes and inspects a machine's simulated GPUs. */
#include "tool.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	tool_command run;
	const char *arguments;
	const char *help;
} commands[] = {
	{"create", tool_create, "[--profile FILE]… [--config FILE] [--gpus N] [--memory SIZE] [--seed N] DIR",
	 "create simulated GPUs: DIR/state, and a device file DIR/gpu<minor> for each GPU;\n      "
	 "profiles (default: $GPUSIM_PROFILE) define the behaviour of the driver and the card"},
	{"destroy", tool_destroy, "DIR", "remove them"},
	{"oracle", tool_oracle, "[--json] [--watch] [--interval SECONDS] DIR",
	 "print the memory and the GPU time of each live process, and of ended processes"},
	{"inject", tool_inject, "[--gpu INDEX|UUID] FAULT [VALUE] DIR",
	 "make a GPU fail: xid, lost, nvml-error, query-error, nvml-hang; clear removes the fault"},
	{"hold", tool_hold,
	 "[--gpu INDEX|UUID] [--graphics] [--encode PERCENT] [--decode PERCENT] [--memory SIZE] [--busy] DIR",
	 "use a GPU without CUDA until killed: through a graphics API, or the video engines"},
	{"mig", tool_mig, "create GPU PROFILE DIR | destroy MIG DIR",
	 "create a MIG device such as 1g.10gb on a GPU in MIG mode and print its UUID, or destroy it"},
	{"cdi", tool_cdi, "--driver-dir DIR --device-dir DIR [--library-dir DIR]",
	 "print the CDI specification that passes the GPUs to containers"},
};

static int usage(FILE *out)
{
	fprintf(out, "usage: gpusim COMMAND …\n\nSimulated GPUs of one machine.\n\nCommands:\n");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(out, "  %s %s\n      %s\n", commands[i].name, commands[i].arguments,
			commands[i].help);
	fprintf(out, "\nSIZE is bytes, or has a unit: 16GiB. A program finds the GPUs at the state file that the\n"
		     "variable GPUSIM_STATE names, by default " GS_DEFAULT_PATH ".\n");
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
