// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "sleep.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// vg_sleep_until sets the finest timer slack of the kernel while it sleeps. With the default slack,
// the thread would wake 50 µs late. vg_sleep_until calls the kernel, because clock_nanosleep is a
// cancellation point, and a program may define a function of this name.
void vg_sleep_until(uint64_t when)
{
	struct timespec at = {(time_t)(when / 1000000000), (long)(when % 1000000000)};
	int slack = prctl(PR_GET_TIMERSLACK);
	int saved = errno;

	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, 1ul);
	while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) && errno == EINTR)
		continue;
	if (slack > 1)
		prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
	errno = saved;
}
