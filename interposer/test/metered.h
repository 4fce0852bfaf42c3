// SPDX-License-Identifier: Apache-2.0

// This header covers calls of the driver of which the throttle counts exactly one launch, or none.

#ifndef VG_TEST_METERED_H
#define VG_TEST_METERED_H

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pages/pages_gen.h"
#include "program.h"

// METERED expects a call that the throttle counts, even if the simulator does not support the call.
// FREE expects a call that the throttle does not count.
#define METERED(name, types, ...) expect(name, 1, CALL(name, types, __VA_ARGS__))
#define FREE(name, types, ...) expect(name, 0, CALL(name, types, __VA_ARGS__))

static inline const struct vg_usage_page *usage(void)
{
	static const struct vg_usage_page *page;
	char path[4096];
	int fd;

	if (page)
		return page;
	snprintf(path, sizeof path, "%s/usage", getenv("NRI_VGPU_DIR"));
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	page = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	close(fd);
	return page;
}

// launches returns the number of this container's launches that the throttle has counted.
static inline uint64_t launches(void)
{
	uint64_t sum = 0;

	for (size_t s = 0; s < VG_MAX_SLOTS; s++)
		for (size_t d = 0; d < VG_MAX_DEVICES; d++)
			sum += __atomic_load_n(&usage()->slots[s].devices[d].launches, __ATOMIC_RELAXED);
	return sum;
}

static inline void expect(const char *name, uint64_t through, CUresult result)
{
	static uint64_t before;
	uint64_t now = launches();

	if ((result && result != CUDA_ERROR_NOT_SUPPORTED) || now - before != through) {
		fprintf(stderr, "%s returned %d, and the throttle counted %llu launches, want %llu\n",
			name, result, (unsigned long long)(now - before), (unsigned long long)through);
		abort();
	}
	before = now;
}

#endif
