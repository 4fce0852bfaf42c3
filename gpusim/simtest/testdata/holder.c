// SPDX-License-Identifier: Apache-2.0
/*
 * This process uses GPUs on command, below the driver's API. Each line of standard input is an
 * order, answered by "ok" or "refused":
 *   hold GPU BYTES   allocates memory, or frees it if BYTES is negative
 *   run GPU NS       keeps the GPU busy for this time, from now on
 */
#include "state.h"
#include "timeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool hold(struct gs_handle *handle, uint32_t gpu, int64_t bytes)
{
	if (bytes >= 0)
		return gs_charge(handle, gpu, (uint64_t)bytes);
	gs_uncharge(handle, gpu, (uint64_t)-bytes);
	return true;
}

static bool run(struct gs_handle *handle, uint32_t gpu, int64_t ns)
{
	struct gs_work work = {
		.kind = GS_ITEM_COMPUTE,
		.gpu = gpu,
		.demand_ppm = GS_DEMAND_ALL,
		.duration_ns = (uint64_t)ns,
	};

	gs_advance(handle, gs_now());
	return gs_enqueue(handle, &work).seq != 0;
}

int main(void)
{
	struct gs_handle handle;
	char order[8];
	uint32_t gpu;
	int64_t amount;

	if (gs_open(&handle, gs_path(), GS_PROCESS))
		return 1;
	while (scanf("%7s %" SCNu32 " %" SCNd64, order, &gpu, &amount) == 3) {
		bool done;

		gs_lock(&handle);
		done = strcmp(order, "run") == 0 ? run(&handle, gpu, amount) :
						   hold(&handle, gpu, amount);
		gs_unlock(&handle);
		puts(done ? "ok" : "refused");
		(void)fflush(stdout);
	}
	return 0;
}
