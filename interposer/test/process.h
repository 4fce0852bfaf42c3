// SPDX-License-Identifier: Apache-2.0

// This header makes a test a process of a container that has initialised CUDA.

#ifndef VG_TEST_PROCESS_H
#define VG_TEST_PROCESS_H

#include "base/error.h"
#include "check.h"
#include "fixture.h"
#include "memory/state.h"
#include "pages/limits.h"
#include "pages/slot.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

// test_process makes the pages of a container with these GPUs, takes a slot, and returns the state
// of the process. The driver's device numbers equal the indices on the pages.
static inline struct vg_state *test_process(const struct vg_limits_device *devices, uint32_t count)
{
	struct vg_state *made = vg_state_new();
	struct vg_error error;
	const char *dir = test_dir();

	CHECK(made);
#ifdef __SANITIZE_ADDRESS__
	__lsan_register_root_region(made, sizeof *made); // the leak checker scans no mappings
#endif
	CHECK(test_pages_make(dir, devices, count) == 0);
	CHECK(vg_limits_open(&made->pages, dir, &error) == 0);
	CHECK(vg_slot_take(&made->pages, &error) == 0);
	for (uint32_t i = 0; i < count; i++)
		made->devices[i] = i + 1;
	atomic_store(&made->ready, 1);
	return made;
}

#endif
