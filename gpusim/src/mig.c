// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements Multi-Instance GPU (MIG). A MIG device is an entry of the table of GPUs, with
 * separate memory and a separate timeline. So instances neither share memory nor wait for each
 * other.
 */
#include "state.h"

#include <stdio.h>
#include <string.h>

enum {
	FIRST_CAP = 3,     /* the minor numbers below belong to the driver's own capabilities */
	GPU_CAPS = 135,    /* minor numbers of a GPU: 15 GPU instances */
	INSTANCE_CAPS = 9, /* of a GPU instance: its own, and those of 8 compute instances */
	EIGHTHS = 8,       /* a slice has an eighth of the SMs of the whole chip */
};

uint32_t gs_mig_cap(uint32_t minor, uint32_t gpu_instance)
{
	return FIRST_CAP + minor * GPU_CAPS + gpu_instance * INSTANCE_CAPS;
}

struct gs_gpu *gs_card(struct gs_state *state, uint32_t gpu)
{
	const struct gs_mig *mig = &state->gpus[gpu].mig;

	return &state->gpus[mig->role >= GS_MIG_DEVICE ? mig->parent : gpu];
}

void gs_uuid_text(const struct gs_gpu *gpu, char text[GS_UUID_SIZE])
{
	int at = snprintf(text, GS_UUID_SIZE, "%s",
			  gpu->mig.role >= GS_MIG_DEVICE ? "MIG" : "GPU");

	for (int i = 0; i < 16; i++)
		at += snprintf(text + at, (size_t)(GS_UUID_SIZE - at),
			       i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
			       gpu->uuid[i]);
}

/* mix returns the next number of splitmix64. */
static uint64_t mix(uint64_t *seed)
{
	uint64_t z = (*seed += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

void gs_random_uuid(uint64_t *seed, uint8_t uuid[16])
{
	uint64_t parts[2] = {mix(seed), mix(seed)};

	memcpy(uuid, parts, sizeof(parts));
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40); /* version 4 */
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

/* parse_profile parses "1g.10gb". */
static bool parse_profile(const char *profile, uint32_t *slices, uint32_t *gib)
{
	char rest;

	return sscanf(profile, "%1ug.%4ugb%c", slices, gib, &rest) == 2 && *slices > 0 &&
	       *slices <= GS_MIG_MAX && *gib > 0;
}

bool gs_mig_make(struct gs_gpu_config *config, const struct gs_gpu_config *gpu, uint32_t parent,
		 const char *profile)
{
	uint32_t slices, gib;

	if (!parse_profile(profile, &slices, &gib))
		return false;
	*config = *gpu;
	memset(config->uuid, 0, sizeof(config->uuid));
	/* A long name of the GPU is cut, so that the profile stays visible. */
	(void)snprintf(config->name, sizeof(config->name), "%.70s MIG %.16s", gpu->name, profile);
	config->memory_bytes = (uint64_t)gib << 30;
	config->sm_count = gpu->sm_count * slices / EIGHTHS;
	config->sm_count += config->sm_count == 0;
	config->mig = (struct gs_mig){.role = GS_MIG_DEVICE, .parent = parent, .slices = slices};
	return true;
}
