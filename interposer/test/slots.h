// SPDX-License-Identifier: Apache-2.0

// This header covers the pages of a container whose slots are tested.

#ifndef VG_TEST_SLOTS_H
#define VG_TEST_SLOTS_H

#include "pages/slot.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

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

// open_driver opens a file in place of the driver's.
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

#endif
