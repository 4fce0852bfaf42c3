// SPDX-License-Identifier: Apache-2.0

// This header declares functions that make pages for tests like the pages that pkg/limits makes for
// containers.

#ifndef VG_TEST_FIXTURE_H
#define VG_TEST_FIXTURE_H

#include <stdint.h>

#include "pages/pages_gen.h"

// test_pages_make writes both pages into a directory. test_pages_make returns 0 or -1.
int test_pages_make(const char *dir, const struct vg_limits_device *devices, uint32_t count);

// test_pages_update changes the limits in place, like an agent.
int test_pages_update(const char *dir, const struct vg_limits_device *devices, uint32_t count);

// test_pages_observe records the container's observed memory on a GPU, in whole units of 4 KiB. The
// value 0 means that the agent observed no excess over the usage page.
int test_pages_observe(const char *dir, uint32_t device, uint64_t bytes);

// test_device returns a GPU whose UUID is 16 times the byte.
struct vg_limits_device test_device(uint8_t byte, uint64_t memory);

// test_dir makes a directory for a test's files and returns its path. The path is valid until the
// next call. The next call, or the end of the process, removes the directory.
const char *test_dir(void);

#endif
