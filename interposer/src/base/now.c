// SPDX-License-Identifier: Apache-2.0

#include "now.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

typedef int (*vg_clock_fn)(clockid_t id, struct timespec *now);

static _Atomic(vg_clock_fn) vg_clock;

void vg_now_set_clock(const void *clock)
{
	vg_clock_fn function;

	memcpy(&function, &clock, sizeof function);
	atomic_store_explicit(&vg_clock, function, memory_order_relaxed);
}

uint64_t vg_now(void)
{
	vg_clock_fn clock = atomic_load_explicit(&vg_clock, memory_order_relaxed);
	struct timespec now;

	if (!clock)
		clock = clock_gettime; // before the driver is opened
	clock(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
