// SPDX-License-Identifier: Apache-2.0
/* gpusim create and destroy. */
#include "state.h"
#include "tool.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct plan {
	struct gs_gpu_config gpus[GS_MAX_GPUS];
	uint32_t count;
	struct gs_gpu_config defaults; /* keys before the first [gpu] */
};

/* ---- values ---- */

static bool parse_number(const char *text, uint64_t *value, const char **rest)
{
	char *end;

	errno = 0;
	if (!isdigit((unsigned char)*text))
		return false;
	*value = strtoull(text, &end, 0);
	*rest = end;
	return errno == 0;
}

/* A number with an optional unit from the table; bare numbers are units of 1. */
static bool parse_unit(const char *text, uint64_t *value, const char *const *units,
		       const uint64_t *factors)
{
	const char *rest;

	if (!parse_number(text, value, &rest))
		return false;
	if (*rest == '\0')
		return true;
	for (size_t i = 0; units[i]; i++)
		if (strcmp(rest, units[i]) == 0)
			return !__builtin_mul_overflow(*value, factors[i], value);
	return false;
}

static bool parse_size(const char *text, uint64_t *value)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "B", NULL};
	static const uint64_t factors[] = {1u << 10, 1u << 20, 1u << 30, 1};

	return parse_unit(text, value, units, factors);
}

static bool parse_time(const char *text, uint64_t *value)
{
	static const char *const units[] = {"ns", "us", "ms", "s", NULL};
	static const uint64_t factors[] = {1, 1000, 1000000, 1000000000};

	return parse_unit(text, value, units, factors);
}

static bool parse_u32(const char *text, uint32_t *value)
{
	uint64_t wide;
	const char *rest;

	if (!parse_number(text, &wide, &rest) || *rest || wide > UINT32_MAX)
		return false;
	*value = (uint32_t)wide;
	return true;
}

/* "GPU-xxxxxxxx-xxxx-…", or the 32 hexadecimal digits with or without dashes. */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
	unsigned n = 0;

	if (strncmp(text, "GPU-", 4) == 0)
		text += 4;
	for (; *text; text++) {
		const char *digits = "0123456789abcdef";
		const char *digit;

		if (*text == '-')
			continue;
		digit = strchr(digits, tolower((unsigned char)*text));
		if (!digit || n == 32)
			return false;
		uuid[n / 2] = (uint8_t)(uuid[n / 2] << 4 | (digit - digits));
		n++;
	}
	return n == 32;
}

static bool copy_text(char *to, size_t size, const char *text)
{
	if (!*text || strlen(text) >= size)
		return false;
	memcpy(to, text, strlen(text) + 1);
	return true;
}

/* ---- configuration ---- */

static bool set_key(struct gs_gpu_config *gpu, const char *key, const char *value)
{
	const char *rest;

	if (strcmp(key, "uuid") == 0)
		return parse_uuid(value, gpu->uuid);
	if (strcmp(key, "name") == 0)
		return copy_text(gpu->name, sizeof(gpu->name), value);
	if (strcmp(key, "pci_bus_id") == 0)
		return copy_text(gpu->pci_bus_id, sizeof(gpu->pci_bus_id), value);
	if (strcmp(key, "memory") == 0)
		return parse_size(value, &gpu->memory_bytes) && gpu->memory_bytes > 0;
	if (strcmp(key, "minor") == 0)
		return parse_u32(value, &gpu->minor);
	if (strcmp(key, "sm_count") == 0)
		return parse_u32(value, &gpu->sm_count) && gpu->sm_count > 0;
	if (strcmp(key, "cc_major") == 0)
		return parse_u32(value, &gpu->cc_major);
	if (strcmp(key, "cc_minor") == 0)
		return parse_u32(value, &gpu->cc_minor);
	if (strcmp(key, "context") == 0)
		return parse_size(value, &gpu->context_bytes);
	if (strcmp(key, "granularity") == 0)
		return parse_size(value, &gpu->alloc_granularity) && gpu->alloc_granularity > 0;
	if (strcmp(key, "slice") == 0)
		return parse_time(value, &gpu->slice_ns) && gpu->slice_ns > 0;
	if (strcmp(key, "switch") == 0)
		return parse_time(value, &gpu->switch_ns);
	if (strcmp(key, "init") == 0)
		return parse_time(value, &gpu->init_ns);
	if (strcmp(key, "context_start") == 0)
		return parse_time(value, &gpu->context_start_ns);
	if (strcmp(key, "default_kernel") == 0)
		return parse_time(value, &gpu->default_kernel_ns);
	if (strcmp(key, "device_bandwidth") == 0)
		return parse_number(value, &gpu->device_bandwidth, &rest) && !*rest &&
		       gpu->device_bandwidth > 0;
	if (strcmp(key, "host_bandwidth") == 0)
		return parse_number(value, &gpu->host_bandwidth, &rest) && !*rest &&
		       gpu->host_bandwidth > 0;
	return false;
}

static char *trim(char *text)
{
	char *end;

	while (isspace((unsigned char)*text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return text;
}

static bool add_gpu(struct plan *plan)
{
	struct gs_gpu_config own;

	if (plan->count == GS_MAX_GPUS)
		return false;
	gs_gpu_defaults(&own, plan->count);
	plan->gpus[plan->count] = plan->defaults;
	plan->gpus[plan->count].minor = own.minor;
	memcpy(plan->gpus[plan->count].pci_bus_id, own.pci_bus_id, sizeof(own.pci_bus_id));
	plan->count++;
	return true;
}

static bool config_line(struct plan *plan, char *line)
{
	struct gs_gpu_config *gpu = plan->count ? &plan->gpus[plan->count - 1] : &plan->defaults;
	char *equals;

	line[strcspn(line, "#")] = '\0';
	line = trim(line);
	if (!*line)
		return true;
	if (strcmp(line, "[gpu]") == 0)
		return add_gpu(plan);
	equals = strchr(line, '=');
	if (!equals)
		return false;
	*equals = '\0';
	return set_key(gpu, trim(line), trim(equals + 1));
}

static int read_config(struct plan *plan, const char *path)
{
	FILE *file = fopen(path, "re");
	char line[512], copy[512];
	int number = 0;

	if (!file) {
		fprintf(stderr, "gpusim: %s: %s\n", path, strerror(errno));
		return 1;
	}
	while (fgets(line, sizeof(line), file)) {
		number++;
		memcpy(copy, line, sizeof(copy));
		if (config_line(plan, line))
			continue;
		fprintf(stderr, "gpusim: %s:%d: unknown key or bad value: %s\n", path, number,
			trim(copy));
		fclose(file);
		return 1;
	}
	fclose(file);
	return 0;
}

/* splitmix64: UUIDs that follow from a seed. */
static uint64_t mix(uint64_t *seed)
{
	uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static void fill_uuids(struct plan *plan, uint64_t seed)
{
	static const uint8_t zero[16];

	for (uint32_t g = 0; g < plan->count; g++) {
		uint64_t parts[2] = {mix(&seed), mix(&seed)};
		uint8_t *uuid = plan->gpus[g].uuid;

		if (memcmp(uuid, zero, sizeof(zero)) != 0)
			continue;
		memcpy(uuid, parts, sizeof(parts));
		uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* version 4 */
		uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
	}
}

struct options {
	const char *config;
	uint32_t gpus; /* 0: as the configuration says, else 2 */
	uint64_t memory;
	uint64_t seed;
};

static bool set_option(struct options *options, int option)
{
	const char *rest;

	switch (option) {
	case 'c':
		options->config = optarg;
		return true;
	case 'g':
		return parse_u32(optarg, &options->gpus) && options->gpus > 0 &&
		       options->gpus <= GS_MAX_GPUS;
	case 'm':
		return parse_size(optarg, &options->memory) && options->memory > 0;
	case 's':
		return parse_number(optarg, &options->seed, &rest) && !*rest;
	default:
		return false;
	}
}

static int make_plan(struct plan *plan, const struct options *options)
{
	gs_gpu_defaults(&plan->defaults, 0);
	if (options->memory)
		plan->defaults.memory_bytes = options->memory;
	if (options->config && read_config(plan, options->config))
		return 1;
	if (plan->count && options->gpus) {
		fprintf(stderr, "gpusim: --gpus and [gpu] sections exclude each other\n");
		return 2;
	}
	if (plan->count == 0)
		for (uint32_t g = 0; g < (options->gpus ? options->gpus : 2); g++)
			(void)add_gpu(plan);
	fill_uuids(plan, options->seed);
	return 0;
}

int tool_create(int argc, char **argv)
{
	static const struct option known[] = {
		{"config", required_argument, NULL, 'c'}, {"gpus", required_argument, NULL, 'g'},
		{"memory", required_argument, NULL, 'm'}, {"seed", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0},
	};
	struct options options = {0};
	struct plan plan = {0};
	int option, err;

	if (getrandom(&options.seed, sizeof(options.seed), 0) != sizeof(options.seed))
		options.seed = gs_now();
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (set_option(&options, option))
			continue;
		if (optarg)
			fprintf(stderr, "gpusim: bad value %s\n", optarg);
		return 2;
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: gpusim create [--config FILE] [--gpus N] [--memory SIZE] "
				"[--seed N] DIR\n");
		return 2;
	}
	err = make_plan(&plan, &options);
	if (err)
		return err;
	err = gs_create(argv[optind], plan.gpus, plan.count);
	if (err) {
		fprintf(stderr, "gpusim: cannot make %s/state: %s\n", argv[optind], strerror(-err));
		return 1;
	}
	return 0;
}

int tool_destroy(int argc, char **argv)
{
	int err;

	if (argc != 2) {
		fprintf(stderr, "usage: gpusim destroy DIR\n");
		return 2;
	}
	err = gs_destroy(argv[1]);
	if (err) {
		fprintf(stderr, "gpusim: cannot remove %s: %s\n", argv[1], strerror(-err));
		return 1;
	}
	return 0;
}
