// SPDX-License-Identifier: Apache-2.0

// Making pages for tests, as pkg/limits makes them for containers.

#ifndef VG_TEST_FIXTURE_H
#define VG_TEST_FIXTURE_H

#include <stdint.h>

#include "pages_gen.h"

// test_pages_make writes both pages into a directory. It returns 0 or -1.
int test_pages_make(const char *dir, const struct vg_limits_device *devices, uint32_t count);

// test_pages_update changes the limits in place, as an agent does.
int test_pages_update(const char *dir, const struct vg_limits_device *devices, uint32_t count);

// test_pages_observe tells what the container was seen to hold on a GPU, in whole
// units of 4 KiB; 0: no more than its usage page says.
int test_pages_observe(const char *dir, uint32_t device, uint64_t bytes);

// test_device is a GPU whose UUID is 16 times the byte.
struct vg_limits_device test_device(uint8_t byte, uint64_t memory);

// test_dir makes a directory for a test's files and returns its path, which
// holds until the next call; the directory goes with the next call or the process.
const char *test_dir(void);

#endif
