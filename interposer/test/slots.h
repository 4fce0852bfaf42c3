// SPDX-License-Identifier: Apache-2.0

// This header declares the pages of a container whose slots are tested.

#ifndef VG_TEST_SLOTS_H
#define VG_TEST_SLOTS_H

#include "pages/slot.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "check.h"
#include "fixture.h"
#include "pages/limits.h"
#include "pages/usage.h"

static char dir[256];

static inline void make_pages(uint64_t limit)
{
	struct vg_limits_device device = test_device(1, limit);

	snprintf(dir, sizeof dir, "%s", test_dir());
	CHECK(test_pages_make(dir, &device, 1) == 0);
}

static inline void attach(struct vg_pages *pages)
{
	struct vg_error error;

	memset(pages, 0, sizeof *pages);
	CHECK(vg_limits_open(pages, dir, &error) == 0);
	CHECK(vg_slot_take(pages, &error) == 0);
}

// attach_new makes pages, and attaches to them.
static inline void attach_new(struct vg_pages *pages, uint64_t limit)
{
	make_pages(limit);
	attach(pages);
}

// open_driver opens a file that stands for the driver's file.
static inline int open_driver(void)
{
	char path[512];
	int fd;

	snprintf(path, sizeof path, "%s/driver", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	return fd;
}

static inline uint64_t used_after_reaping(struct vg_pages *pages)
{
	vg_slots_reap(pages, 0);
	return vg_usage_memory(pages, 0);
}

// leave ends the process like a kill, so that its slot keeps its contents.
static inline void leave(uint64_t used)
{
	struct vg_pages pages;
	struct vg_slot_device *devices;

	attach(&pages);
	devices = pages.usage->slots[pages.slot].devices;
	vg_store(&devices[0].used, used);
	for (unsigned i = 0; i < VG_MAX_DEVICES; i++) {
		vg_store(&devices[i].gpu_time_ns, 100 + i);
		vg_store(&devices[i].wait_ns, 200 + i);
		vg_store(&devices[i].launches, 300 + i);
	}
	vg_pages_close(&pages);
}

// in_child runs a part of a test in a new process.
static inline void in_child(void (*what)(void))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		what();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK_EQUAL(status, 0);
}

#endif
