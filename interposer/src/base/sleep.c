// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "sleep.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

// vg_sleep_until sets the kernel's finest timer slack while it sleeps; otherwise it would wake 50
// µs late.
void vg_sleep_until(uint64_t when)
{
	struct timespec at = {(time_t)(when / 1000000000), (long)(when % 1000000000)};
	int slack = prctl(PR_GET_TIMERSLACK);
	int saved = errno;

	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, 1ul);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		continue;
	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
	errno = saved;
}
