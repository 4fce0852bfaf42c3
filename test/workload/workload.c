// SPDX-License-Identifier: Apache-2.0

// vgpu-workload contains the workloads of `vgpuctl verify` in one program. nri-vgpu installs the
// program beside the interposer. The program's first argument is the workload's name.

#include <stdio.h>
#include <string.h>

#include "options.h"

// These functions are the workloads' main functions, compiled under other names.
int wl_main_card(int argc, char **argv);
int wl_main_fill(int argc, char **argv);
int wl_main_latency(int argc, char **argv);
int wl_main_scenes(int argc, char **argv);
int wl_main_spin(int argc, char **argv);

static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
} wl_workloads[] = {
	{"card", wl_main_card},     {"fill", wl_main_fill}, {"latency", wl_main_latency},
	{"scenes", wl_main_scenes}, {"spin", wl_main_spin},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof wl_workloads / sizeof *wl_workloads; i++)
		if (strcmp(argv[1], wl_workloads[i].name) == 0)
			return wl_workloads[i].main(argc - 1, argv + 1);
	fprintf(stderr, "Usage: %s card|fill|latency|scenes|spin [OPTION]...\n", argv[0]);
	return WL_EXIT_USAGE;
}
