// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "sleep.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

// vg_sleep_until sets the finest timer slack of the kernel while it sleeps. With the default slack,
// the thread would wake 50 µs late.
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
