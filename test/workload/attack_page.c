// SPDX-License-Identifier: Apache-2.0

// This file implements attacks on the container's usage page.

#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "attack.h"

// wl_open opens one of the container's pages, and pauses after a failure.
static int wl_open(struct wl_attack *attack, const char *name, int flags)
{
	char path[200];
	int fd;

	snprintf(path, sizeof path, "%s/%s", attack->dir, name);
	fd = open(path, flags | O_CLOEXEC);
	if (fd < 0) {
		attack->refused++;
		wl_attack_rest(100);
	}
	return fd;
}

// wl_reserve takes as much of the page's file system as possible.
static void wl_reserve(struct wl_attack *attack, int fd, int mode)
{
	off_t at = 0;

	for (off_t size = (off_t)10 << 30; size >= 4096; size /= 2)
		while (fallocate(fd, mode, at, size) == 0) {
			attack->done++;
			at += size;
		}
	attack->refused++;
}

static void wl_scatter(struct wl_attack *attack, int fd)
{
	static const char byte[1] = "x";

	wl_count(attack, ftruncate(fd, (off_t)1 << 40));
	for (int i = 0; i < 2000; i++)
		wl_count(attack, pwrite(fd, byte, 1, (off_t)wl_attack_random() << 8));
}

static void wl_attributes(struct wl_attack *attack, int fd)
{
	static char value[60000];
	char name[40];

	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof name, "user.%d-%u", i, wl_attack_random());
		wl_count(attack, fsetxattr(fd, name, value, sizeof value, 0));
	}
}

static void wl_grow(struct wl_attack *attack)
{
	int fd = wl_open(attack, "usage", O_RDWR);

	if (fd < 0)
		return;
	wl_scatter(attack, fd);
	wl_attributes(attack, fd);
	wl_reserve(attack, fd, 0);
	wl_reserve(attack, fd, FALLOC_FL_KEEP_SIZE);
	wl_count(attack, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	close(fd);
	wl_attack_rest(200);
}

static void wl_shrink(struct wl_attack *attack)
{
	static const off_t sizes[] = {0, 1, 100, 4096, 65536, 1 << 20};
	int fd = wl_open(attack, "usage", O_RDWR);

	if (fd < 0)
		return;
	wl_count(attack, ftruncate(fd, sizes[wl_attack_random() % (sizeof sizes / sizeof *sizes)]));
	close(fd);
	wl_attack_rest(20);
}

// wl_scribble overwrites a piece of the page, in the header at its beginning or anywhere.
static void wl_scribble(struct wl_attack *attack)
{
	unsigned char noise[256];
	struct stat status;
	int fd = wl_open(attack, "usage", O_RDWR);
	off_t at;

	if (fd < 0)
		return;
	for (size_t i = 0; i < sizeof noise; i++)
		noise[i] = (unsigned char)wl_attack_random();
	if (fstat(fd, &status) || status.st_size < 512)
		status.st_size = 512;
	at = wl_attack_random() % 2 ? wl_attack_random() % 128 : wl_attack_random() % (status.st_size - 256);
	wl_count(attack, pwrite(fd, noise, 1 + wl_attack_random() % sizeof noise, at));
	close(fd);
	wl_attack_rest(5);
}

// wl_lock sets locks that do not overlap, and keeps the locks.
static void wl_lock(struct wl_attack *attack)
{
	static int fd = -1;
	static uint64_t set;
	struct flock lock = {.l_type = F_WRLCK, .l_len = 1};

	if (fd < 0)
		fd = wl_open(attack, "usage", O_RDWR);
	if (fd < 0)
		return;
	if (set >= attack->locks) {
		wl_attack_rest(100);
		return;
	}
	lock.l_start = (off_t)(2 * set++);
	wl_count(attack, fcntl(fd, F_OFD_SETLK, &lock));
}

// wl_lease takes read leases, which delay processes that open the file for writing. wl_lease
// ignores requests to release the leases.
static void wl_lease(struct wl_attack *attack)
{
	static const char *const files[] = {"usage", "limits"};

	signal(SIGIO, SIG_IGN);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		int fd = wl_open(attack, files[i], O_RDONLY);

		if (fd < 0)
			continue;
		wl_count(attack, fcntl(fd, F_SETLEASE, F_RDLCK));
		wl_attack_rest(1000);
		close(fd);
	}
}

const struct wl_attack_way wl_page_ways[] = {
	{"grow", "reserve space for the usage page, write holes, set attributes", wl_grow},
	{"shrink", "truncate the usage page", wl_shrink},
	{"scribble", "write noise on the usage page", wl_scribble},
	{"lock", "set --locks locks on the usage page", wl_lock},
	{"lease", "take leases on the pages", wl_lease},
	{NULL, NULL, NULL},
};
