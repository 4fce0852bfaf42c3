// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "mps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/driver.h"
#include "memory/state.h"
#include "pages/pages.h"

static const char vg_mps_dir[] = "/run/nri-vgpu/mps";

enum {
	vg_attribute_multiprocessors = 16,
	vg_ppm_per_percent = 10000,
	// The driver assigns multiprocessors in groups, which have this size on some GPUs. The driver's
	// documentation does not describe the rounding: on an H200, 50 % of 132 multiprocessors are 68.
	vg_group = 8,
};

// vg_percentage parses a percentage such as "12.5", and returns parts per million, or 0 for invalid
// text. vg_percentage does not use the C library's functions, which depend on the program's locale.
static uint32_t vg_percentage(const char *text)
{
	uint32_t unit = vg_ppm_per_percent;
	uint32_t ppm = 0;
	bool fraction = false;

	for (; *text; text++) {
		if (*text == '.' && !fraction) {
			fraction = true;
			continue;
		}
		if (*text < '0' || *text > '9' || ppm > VG_PPM)
			return 0;
		if (fraction)
			ppm += (uint32_t)(*text - '0') * (unit /= 10);
		else
			ppm = ppm * 10 + (uint32_t)(*text - '0') * unit;
	}
	return ppm <= VG_PPM ? ppm : 0;
}

// vg_least_part returns the smallest part among the container's GPUs, or 0 if MPS shares no GPU.
// The environment has only one value for all GPUs.
static uint32_t vg_least_part(struct vg_pages *pages)
{
	uint32_t least = 0;

	for (uint32_t i = 0; i < pages->device_count; i++) {
		uint32_t part = atomic_load(&pages->mps[i]);

		if (part && (!least || part < least))
			least = part;
	}
	return least;
}

// vg_set changes a variable of the environment only if the value is wrong. Normally the container
// runtime has set the variable, and other threads may be reading the environment.
static void vg_set(const char *name, const char *value)
{
	const char *now = getenv(name);

	if (!now || strcmp(now, value) != 0)
		setenv(name, value, 1);
}

void vg_mps_prepare(struct vg_pages *pages)
{
	static const char percentage[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
	uint32_t part = vg_least_part(pages);
	const char *now = getenv(percentage);
	uint32_t own = now ? vg_percentage(now) : 0;
	char text[16];

	if (!part)
		return;
	if (access(vg_mps_dir, F_OK) == 0)
		vg_set("CUDA_MPS_PIPE_DIRECTORY", vg_mps_dir);
	if (part >= VG_PPM || (own && own <= part))
		return;
	snprintf(text, sizeof text, "%u.%04u", part / vg_ppm_per_percent, part % vg_ppm_per_percent);
	vg_set(percentage, text);
}

// A process without the service, or with more than its part, sees too many SMs. vg_mps_check cannot
// detect too many SMs for a part that is nearly the whole GPU.
bool vg_mps_check(const struct vg_pages *pages, const uint32_t *devices, struct vg_error *error)
{
	for (CUdevice device = 0; device < vg_max_ordinals; device++) {
		uint32_t part = devices[device] ? atomic_load(&pages->mps[devices[device] - 1]) : 0;
		uint32_t all = devices[device] ? atomic_load(&pages->sms[devices[device] - 1]) : 0;
		int seen = 0;

		if (!part || part >= VG_PPM || !all)
			continue;
		if (VG_CALL(cuDeviceGetAttribute, &seen, vg_attribute_multiprocessors, device) == 0 &&
		    seen > 0 && (uint64_t)seen <= (uint64_t)all * part / VG_PPM + vg_group)
			continue;
		vg_error_set(error, "MPS does not hold this process to its part of the GPU (the process sees "
				    "%d of %u multiprocessors): check that the daemon runs on this node: "
				    "see docs/how-to/choose-sharing.md", seen, all);
		return false;
	}
	return true;
}
