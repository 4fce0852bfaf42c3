// SPDX-License-Identifier: Apache-2.0

#include "now.h"

#include <time.h>

uint64_t vg_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
