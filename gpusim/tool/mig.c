// SPDX-License-Identifier: Apache-2.0
/* gpusim mig creates and destroys MIG devices of a running machine, like nvidia-smi mig. */
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static int usage(void)
{
	fprintf(stderr, "usage: gpusim mig create INDEX|UUID PROFILE DIR\n"
			"       gpusim mig destroy INDEX|UUID DIR\n"
			"PROFILE is slices and memory, such as 1g.10gb. The GPU must be in MIG mode.\n");
	return 2;
}

static int create(struct gs_handle *handle, uint32_t gpu, const char *profile)
{
	char text[GS_UUID_SIZE];
	uint8_t uuid[16];
	uint64_t seed = gs_now();
	int entry;

	(void)getrandom(&seed, sizeof(seed), 0);
	gs_random_uuid(&seed, uuid);
	entry = gs_mig_create(handle, gpu, profile, uuid);
	if (entry < 0) {
		fprintf(stderr, "gpusim: cannot create a MIG device %s: %s\n", profile,
			entry == -EINVAL ? "the GPU is not in MIG mode, or the profile is unknown" :
			entry == -ENOSPC ? "too few slices, memory or entries are left" :
					   strerror(-entry));
		return 1;
	}
	gs_uuid_text(&handle->state->gpus[entry], text);
	printf("%s\n", text);
	return 0;
}

static int destroy(struct gs_handle *handle, uint32_t gpu)
{
	int err = gs_mig_destroy(handle, gpu);

	if (!err)
		return 0;
	fprintf(stderr, "gpusim: cannot destroy the MIG device: %s\n",
		err == -EBUSY ? "a process uses it" : "it is not a MIG device");
	return 1;
}

int tool_mig(int argc, char **argv)
{
	bool creates = argc == 5 && strcmp(argv[1], "create") == 0;
	struct gs_handle handle;
	int gpu, failed;

	if (!creates && (argc != 4 || strcmp(argv[1], "destroy") != 0))
		return usage();
	if (tool_open(&handle, argv[argc - 1]))
		return 1;
	gpu = tool_find_gpu(handle.state, argv[2]);
	if (gpu < 0) {
		fprintf(stderr, "gpusim: no GPU %s in %s\n", argv[2], argv[argc - 1]);
		failed = 1;
	} else {
		failed = creates ? create(&handle, (uint32_t)gpu, argv[3]) : destroy(&handle, (uint32_t)gpu);
	}
	gs_close(&handle);
	return failed;
}
