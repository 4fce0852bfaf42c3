// SPDX-License-Identifier: Apache-2.0

// fast_clock is a library that a program preloads to change its time, as libfaketime does. In the
// library $FAST_CLOCK_OF, the time of CLOCK_MONOTONIC passes three times as fast. The simulator is not
// affected, because a GPU does not follow the program's clock. entries_test.sh preloads fast_clock.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { faster = 3 };

static bool is_fast(clockid_t id, const void *caller)
{
	const char *of = getenv("FAST_CLOCK_OF");
	Dl_info info;

	return id == CLOCK_MONOTONIC && of && dladdr(caller, &info) && strcmp(info.dli_fname, of) == 0;
}

static void scale(struct timespec *time, unsigned long by, unsigned long part)
{
	unsigned long ns = ((unsigned long)time->tv_sec * 1000000000 + (unsigned long)time->tv_nsec) * by / part;

	time->tv_sec = (time_t)(ns / 1000000000);
	time->tv_nsec = (long)(ns % 1000000000);
}

int clock_gettime(clockid_t id, struct timespec *now)
{
	int result = (int)syscall(SYS_clock_gettime, id, now);

	if (!result && is_fast(id, __builtin_return_address(0)))
		scale(now, faster, 1);
	return result;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *time, struct timespec *left)
{
	struct timespec real = *time;

	if (is_fast(id, __builtin_return_address(0)))
		scale(&real, 1, faster);
	return syscall(SYS_clock_nanosleep, id, flags, &real, left) ? errno : 0;
}
