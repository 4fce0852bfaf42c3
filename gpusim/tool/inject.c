// SPDX-License-Identifier: Apache-2.0
/* gpusim inject causes faults on request. */
#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { XID_FALLEN_OFF_BUS = 79, XID_RECOVERY_ACTION = 154 };

/* effect applies a fault to one GPU. `value` is the fault's number. The caller holds the lock. */
typedef void (*effect)(struct gs_handle *handle, uint32_t gpu, uint64_t value);

static void add_xid(struct gs_handle *handle, uint32_t gpu, uint64_t value)
{
	gs_add_xid(handle->state, gpu, (uint32_t)value);
}

static void set_lost(struct gs_handle *handle, uint32_t gpu, bool lost)
{
	__atomic_store_n(&handle->state->gpus[gpu].faults.lost, lost, __ATOMIC_RELAXED);
}

static void set_error(struct gs_handle *handle, uint32_t gpu, uint64_t value)
{
	__atomic_store_n(&handle->state->gpus[gpu].faults.nvml_error, (uint32_t)value,
			 __ATOMIC_RELAXED);
}

static void set_hang(struct gs_handle *handle, uint32_t gpu, uint64_t seconds)
{
	uint64_t until = seconds ? gs_now() + seconds * UINT64_C(1000000000) : 0;

	__atomic_store_n(&handle->state->gpus[gpu].faults.nvml_hang_until, until,
			 __ATOMIC_RELAXED);
}

/* set_recovery sets the recovery action, and adds an XID, as a real GPU does. */
static void set_recovery(struct gs_handle *handle, uint32_t gpu, uint64_t action)
{
	__atomic_store_n(&handle->state->gpus[gpu].faults.recovery, (uint32_t)action,
			 __ATOMIC_RELAXED);
	gs_add_xid(handle->state, gpu, XID_RECOVERY_ACTION);
}

static void set_query_error(struct gs_handle *handle, uint32_t gpu, uint64_t value)
{
	__atomic_store_n(&handle->state->gpus[gpu].faults.query_error, (uint32_t)value,
			 __ATOMIC_RELAXED);
}

static void set_late(struct gs_handle *handle, uint32_t gpu, uint64_t queries)
{
	handle->state->gpus[gpu].faults.late_samples = (uint32_t)queries;
}

/* lose makes a GPU fall off the bus. The kernel log gets an XID, as from a real GPU. */
static void lose(struct gs_handle *handle, uint32_t gpu, uint64_t value)
{
	(void)value;
	set_lost(handle, gpu, true);
	gs_add_xid(handle->state, gpu, XID_FALLEN_OFF_BUS);
}

static void clear(struct gs_handle *handle, uint32_t gpu, uint64_t value)
{
	(void)value;
	set_lost(handle, gpu, false);
	set_error(handle, gpu, 0);
	set_query_error(handle, gpu, 0);
	set_hang(handle, gpu, 0);
	set_late(handle, gpu, 0);
	__atomic_store_n(&handle->state->gpus[gpu].faults.recovery, 0, __ATOMIC_RELAXED);
}

static const struct fault {
	const char *name;
	const char *value; /* NULL: the fault takes no value */
	uint64_t least, most;
	effect act;
	const char *help;
} faults[] = {
	{"xid", "NUMBER", 1, 1000, add_xid, "report this XID as an event"},
	{"lost", NULL, 0, 0, lose, "the GPU falls off the bus (XID 79)"},
	{"recovery", "ACTION", 0, 7, set_recovery,
	 "NVML recommends this recovery action (XID 154); 0: none, 1: a reset of the GPU"},
	{"nvml-error", "CODE", 0, 999, set_error, "NVML calls on the GPU return this code; 0: none"},
	{"nvml-hang", "SECONDS", 0, 86400, set_hang, "NVML calls on the GPU block for this time; 0: none"},
	{"query-error", "CODE", 0, 999, set_query_error,
	 "NVML calls return this code, except calls that name the GPU; 0: none"},
	{"late-samples", "QUERIES", 0, 1000, set_late,
	 "a sample of a process arrives after each of the next queries for the number of samples"},
	{"clear", NULL, 0, 0, clear, "remove all injected faults"},
};

#define FAULTS (sizeof(faults) / sizeof(faults[0]))

static int usage(void)
{
	fprintf(stderr, "usage: gpusim inject [--gpu INDEX|UUID] FAULT [VALUE] DIR\n"
			"Without --gpu, the fault affects every GPU. Faults:\n");
	for (size_t i = 0; i < FAULTS; i++)
		fprintf(stderr, "  %-12s %-8s %s\n", faults[i].name,
			faults[i].value ? faults[i].value : "", faults[i].help);
	return 2;
}

static const struct fault *find_fault(const char *name)
{
	for (size_t i = 0; i < FAULTS; i++)
		if (strcmp(faults[i].name, name) == 0)
			return &faults[i];
	return NULL;
}

static bool parse_value(const struct fault *fault, const char *text, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *value >= fault->least &&
	       *value <= fault->most;
}

static int strike(const struct fault *fault, uint64_t value, const char *gpu, const char *dir)
{
	struct gs_handle handle;
	int only = -1;

	if (tool_open(&handle, dir))
		return 1;
	if (gpu) {
		only = tool_find_gpu(handle.state, gpu);
		if (only < 0) {
			fprintf(stderr, "gpusim: no GPU %s in %s\n", gpu, dir);
			gs_close(&handle);
			return 1;
		}
	}
	gs_lock(&handle);
	for (uint32_t g = 0; g < handle.state->gpu_count; g++)
		if (only < 0 || g == (uint32_t)only)
			fault->act(&handle, g, value);
	gs_unlock(&handle);
	gs_close(&handle);
	return 0;
}

int tool_inject(int argc, char **argv)
{
	static const struct option known[] = {
		{"gpu", required_argument, NULL, 'g'},
		{NULL, 0, NULL, 0},
	};
	const char *gpu = NULL;
	const struct fault *fault;
	uint64_t value = 0;
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (option != 'g')
			return usage();
		gpu = optarg;
	}
	argv += optind;
	argc -= optind;
	fault = argc > 0 ? find_fault(argv[0]) : NULL;
	if (!fault || argc != (fault->value ? 3 : 2))
		return usage();
	if (fault->value && !parse_value(fault, argv[1], &value)) {
		fprintf(stderr, "gpusim: %s %s must be %llu to %llu, not \"%s\"\n", fault->name,
			fault->value, (unsigned long long)fault->least,
			(unsigned long long)fault->most, argv[1]);
		return 2;
	}
	return strike(fault, value, gpu, argv[argc - 1]);
}
