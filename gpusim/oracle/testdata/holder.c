// SPDX-License-Identifier: Apache-2.0
/*
 * A process that holds memory of GPU 0 and GPU 1 as told: each line of standard
 * input is "GPU BYTES", negative to give back; it answers "ok" or "refused".
 */
#include "state.h"

#include <inttypes.h>
#include <stdio.h>

static bool change(struct gs_handle *handle, uint32_t gpu, int64_t bytes)
{
	bool done = true;

	gs_lock(handle);
	if (bytes < 0)
		gs_uncharge(handle, gpu, (uint64_t)-bytes);
	else
		done = gs_charge(handle, gpu, (uint64_t)bytes);
	gs_unlock(handle);
	return done;
}

int main(void)
{
	struct gs_handle handle;
	uint32_t gpu;
	int64_t bytes;

	if (gs_open(&handle, gs_path(), GS_PROCESS))
		return 1;
	while (scanf("%" SCNu32 " %" SCNd64, &gpu, &bytes) == 2) {
		puts(change(&handle, gpu, bytes) ? "ok" : "refused");
		(void)fflush(stdout);
	}
	return 0;
}
