// SPDX-License-Identifier: Apache-2.0
/* This file implements gpusim create and destroy. */
#include "config.h"
#include "tool.h"
#include "value.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void fill_uuids(struct config *config, uint64_t seed)
{
	static const uint8_t zero[16];

	for (uint32_t g = 0; g < config->machine.gpu_count; g++) {
		uint8_t *uuid = config->machine.gpus[g].uuid;
		uint8_t derived[16];

		gs_random_uuid(&seed, derived);
		if (memcmp(uuid, zero, sizeof(zero)) == 0)
			memcpy(uuid, derived, sizeof(derived));
	}
}

struct options {
	char profiles[4096]; /* files, separated by colons: later files override earlier files */
	bool named;          /* the profiles are from options, which replace the environment's profiles */
	const char *config;
	uint32_t gpus; /* 0: the configuration's number, otherwise 2 */
	uint64_t memory;
	uint64_t seed;
};

/* add_profiles appends profiles to the profiles of earlier options. */
static bool add_profiles(struct options *options, const char *files)
{
	size_t length = options->named ? strlen(options->profiles) : 0;
	int written = snprintf(options->profiles + length, sizeof(options->profiles) - length, "%s%s",
			       length ? ":" : "", files);

	options->named = true;
	return written > 0 && (size_t)written < sizeof(options->profiles) - length;
}

static int read_profiles(struct config *config, struct options *options)
{
	char *rest = options->profiles;

	for (char *file; (file = strsep(&rest, ":"));)
		if (*file && config_read(config, file, false))
			return 1;
	return 0;
}

static bool set_option(struct options *options, int option)
{
	const char *rest;

	switch (option) {
	case 'p':
		return add_profiles(options, optarg);
	case 'c':
		options->config = optarg;
		return true;
	case 'g':
		return value_u32(optarg, &options->gpus) && options->gpus > 0 &&
		       options->gpus <= GS_MAX_GPUS;
	case 'm':
		return value_size(optarg, &options->memory) && options->memory > 0;
	case 's':
		return value_number(optarg, &options->seed, &rest) && !*rest;
	default:
		return false;
	}
}

static int make_config(struct config *config, struct options *options)
{
	gs_gpu_defaults(&config->defaults, 0);
	gs_driver_defaults(&config->machine);
	if (read_profiles(config, options))
		return 1;
	if (options->memory)
		config->defaults.memory_bytes = options->memory;
	if (options->config && config_read(config, options->config, true))
		return 1;
	if (config->machine.gpu_count && options->gpus) {
		fprintf(stderr, "gpusim: --gpus and [gpu] sections exclude each other\n");
		return 2;
	}
	if (config->machine.gpu_count == 0)
		for (uint32_t g = 0; g < (options->gpus ? options->gpus : 2); g++)
			(void)config_add_gpu(config);
	fill_uuids(config, options->seed);
	return 0;
}

int tool_create(int argc, char **argv)
{
	static const struct option known[] = {
		{"profile", required_argument, NULL, 'p'},
		{"config", required_argument, NULL, 'c'}, {"gpus", required_argument, NULL, 'g'},
		{"memory", required_argument, NULL, 'm'}, {"seed", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0},
	};
	const char *environment = getenv("GPUSIM_PROFILE");
	struct options options = {0};
	struct config config = {0};
	int option, index, err;

	if (environment && *environment && !add_profiles(&options, environment)) {
		fprintf(stderr, "gpusim: too many profiles in GPUSIM_PROFILE\n");
		return 1;
	}
	options.named = false; /* the first option replaces the environment's profiles */
	if (getrandom(&options.seed, sizeof(options.seed), 0) != sizeof(options.seed))
		options.seed = gs_now();
	while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
		if (set_option(&options, option))
			continue;
		if (optarg)
			fprintf(stderr, "gpusim: bad value of --%s: %s: run gpusim --help\n", known[index].name,
				optarg);
		return 2;
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: gpusim create [--profile FILE]… [--config FILE] [--gpus N] [--memory SIZE] "
				"[--seed N] DIR\n");
		return 2;
	}
	err = make_config(&config, &options);
	if (err)
		return err;
	err = gs_create(argv[optind], &config.machine);
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
