// SPDX-License-Identifier: Apache-2.0
/* This file implements the clock of all machines. */
#include "state.h"

#include <time.h>

uint64_t gs_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}
