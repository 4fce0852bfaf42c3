// SPDX-License-Identifier: Apache-2.0
/* gpusim hold is a program that uses a GPU without CUDA. */
#include "state.h"
#include "timeline.h"
#include "tool.h"
#include "value.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_NS = 10000000, LOOK_NS = 2000000 };

struct holding {
	const char *dir;
	const char *gpu; /* NULL: the first visible GPU */
	uint64_t memory;
	int graphics;
	int busy;
	uint32_t encoder, decoder; /* percent */
};

static int usage(void)
{
	fprintf(stderr, "usage: gpusim hold [--gpu INDEX|UUID] [--graphics] [--encode PERCENT] "
			"[--decode PERCENT] [--memory SIZE] [--busy] DIR\n"
			"hold holds memory of a GPU until killed. NVML lists hold as a compute process.\n"
			"  --graphics  as a graphics process instead, like a program that uses Vulkan\n"
			"  --encode    with a session of the video encoder, 1 to 100 percent busy\n"
			"  --decode    with the video decoder, 1 to 100 percent busy\n"
			"  --memory    default: 256MiB\n"
			"  --busy      keeps the GPU busy, frame after frame\n");
	return 2;
}

static bool parse_percent(const char *text, uint32_t *value)
{
	return value_u32(text, value) && *value >= 1 && *value <= 100;
}

static bool parse_option(struct holding *holding, int option)
{
	switch (option) {
	case 0:
		return true;
	case 'g':
		holding->gpu = optarg;
		return true;
	case 'm':
		return value_size(optarg, &holding->memory) && holding->memory > 0;
	case 'e':
		return parse_percent(optarg, &holding->encoder);
	case 'd':
		return parse_percent(optarg, &holding->decoder);
	default:
		return false;
	}
}

static bool parse_options(struct holding *holding, int argc, char **argv)
{
	const struct option known[] = {
		{"gpu", required_argument, NULL, 'g'},
		{"memory", required_argument, NULL, 'm'},
		{"encode", required_argument, NULL, 'e'},
		{"decode", required_argument, NULL, 'd'},
		{"graphics", no_argument, &holding->graphics, 1},
		{"busy", no_argument, &holding->busy, 1},
		{NULL, 0, NULL, 0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
		if (!parse_option(holding, option))
			return false;
	if (optind + 1 != argc)
		return false;
	holding->dir = argv[optind];
	return true;
}

/* choose_gpu returns the GPU to hold, or -1. Like any program, this program gets a GPU whose device
 * the program can open. */
static int choose_gpu(const struct gs_handle *handle, const char *name)
{
	int named = name ? tool_find_gpu(handle->state, name) : -1;

	for (uint32_t g = 0; g < handle->state->gpu_count; g++)
		if (gs_gpu_visible(handle, g) && (!name || (int)g == named))
			return (int)g;
	return -1;
}

static bool take(struct gs_handle *handle, const struct holding *holding, uint32_t gpu)
{
	struct gs_proc *self;
	bool taken;

	gs_lock(handle);
	gs_advance(handle, gs_now());
	self = &handle->state->procs[handle->id];
	self->graphics = (uint32_t)holding->graphics;
	self->encoder_percent = holding->encoder;
	self->decoder_percent = holding->decoder;
	taken = gs_charge(handle, gpu, holding->memory);
	gs_unlock(handle);
	return taken;
}

/* render keeps two frames queued at any time, like a swap chain. */
static void render(struct gs_handle *handle, uint32_t gpu)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	const struct gs_work frame = {
		.kind = GS_ITEM_COMPUTE, .gpu = gpu, .demand_ppm = GS_DEMAND_ALL, .duration_ns = FRAME_NS,
	};
	struct gs_ref frames[2] = {{0}};

	for (;;) {
		gs_lock(handle);
		gs_advance(handle, gs_now());
		for (int i = 0; i < 2; i++)
			if (!gs_is_pending(handle, frames[i]))
				frames[i] = gs_enqueue(handle, &frame);
		gs_unlock(handle);
		(void)nanosleep(&pause, NULL);
	}
}

static int hold(const struct holding *holding)
{
	struct gs_handle handle;
	char path[512];
	int gpu, err;

	if (snprintf(path, sizeof(path), "%s/state", holding->dir) >= (int)sizeof(path))
		err = -ENAMETOOLONG;
	else
		err = gs_open(&handle, path, GS_PROCESS);
	if (err) {
		fprintf(stderr, "gpusim: cannot open %s: %s\n", path,
			err == -EPROTO ? "not a state of this version" : strerror(-err));
		return 1;
	}
	gpu = choose_gpu(&handle, holding->gpu);
	if (gpu < 0) {
		fprintf(stderr, "gpusim: no GPU %s is visible in %s\n",
			holding->gpu ? holding->gpu : "at all", holding->dir);
		return 1;
	}
	if (!take(&handle, holding, (uint32_t)gpu)) {
		fprintf(stderr, "gpusim: GPU %d has less than %" PRIu64 " bytes left\n", gpu,
			holding->memory);
		return 1;
	}
	printf("{\"pid\":%d,\"gpu\":%d,\"bytes\":%" PRIu64 "}\n", (int)getpid(), gpu,
	       holding->memory);
	(void)fflush(stdout);
	if (holding->busy)
		render(&handle, (uint32_t)gpu);
	for (;;)
		(void)pause();
}

int tool_hold(int argc, char **argv)
{
	struct holding holding = {.memory = UINT64_C(256) << 20};

	if (!parse_options(&holding, argc, argv))
		return usage();
	return hold(&holding);
}
