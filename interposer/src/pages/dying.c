// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "dying.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// The enumeration has the numbers of fields of /proc/<pid>/stat that follow the name: see proc(5).
enum { vg_stat_state = 3, vg_stat_flags = 9, vg_stat_threads = 20 };

// vg_exiting is the kernel's flag of a task that has begun to exit.
static const uint64_t vg_exiting = 4;

static const char *vg_stat_field(const char *line, int wanted)
{
	// The name may contain any character, but ends at the last bracket.
	const char *at = strrchr(line, ')');

	for (int field = 2; at && field < wanted; field++)
		at = strchr(at + 1, ' ');
	return at ? at + 1 : "";
}

static uint64_t vg_stat_number(const char *line, int wanted)
{
	const char *at = vg_stat_field(line, wanted);
	uint64_t number = 0;

	while (*at >= '0' && *at <= '9')
		number = number * 10 + (uint64_t)(*at++ - '0');
	return number;
}

static bool vg_stat_read(uint32_t pid, char *line, size_t size)
{
	char path[32];
	ssize_t length;
	int fd;

	snprintf(path, sizeof path, "/proc/%u/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = read(fd, line, size - 1);
	close(fd);
	if (length <= 0)
		return false;
	line[length] = '\0';
	return true;
}

// vg_is_gone reports whether no process has the pid. The kernel finds a process much faster than
// procfs opens its file.
static bool vg_is_gone(uint32_t pid)
{
	return pid > INT_MAX || (kill((pid_t)pid, 0) && errno == ESRCH);
}

bool vg_dying(uint32_t pid)
{
	char line[1024];
	char state;

	if (pid == 0 || pid == (uint32_t)getpid() || vg_is_gone(pid) || !vg_stat_read(pid, line, sizeof line))
		return false;
	if (!(vg_stat_number(line, vg_stat_flags) & vg_exiting))
		return false;
	// A zombie with other threads is the first thread, which has ended before the others.
	state = *vg_stat_field(line, vg_stat_state);
	return (state != 'Z' && state != 'X') || vg_stat_number(line, vg_stat_threads) > 1;
}
