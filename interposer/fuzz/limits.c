// SPDX-License-Identifier: Apache-2.0

// This file fuzzes the limits page. A tenant in a container cannot write the page, but a user of
// vgpuctl can write the page, and disks fail. A limit in force must be
// 0 or come from a whole copy.

#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "fixture.h"
#include "fuzz.h"
#include "pages/limits.h"
#include "pages/pages.h"
#include "pages/usage.h"

enum { devices = 2 };

static char dir[256];
static struct vg_limits_page *page; // the file, for writing
static struct vg_limits_page good;
static int page_fd;

static void set_up(void)
{
	struct vg_limits_device limits[devices] = {test_device(1, 1000), test_device(2, 2000)};
	char path[300];

	snprintf(dir, sizeof dir, "%s", test_dir());
	FUZZ_CHECK(test_pages_make(dir, limits, devices) == 0);
	snprintf(path, sizeof path, "%s/limits", dir);
	page_fd = open(path, O_RDWR | O_CLOEXEC);
	FUZZ_CHECK(page_fd >= 0);
	page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
	FUZZ_CHECK(page != MAP_FAILED);
	good = *page;
}

static uint64_t checksum(const struct vg_limits_copy *copy)
{
	const unsigned char *bytes = (const unsigned char *)copy;
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < offsetof(struct vg_limits_copy, checksum); i++)
		hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
	return hash;
}

// active returns the copy in force, or NULL if the copy is not whole.
static const struct vg_limits_copy *active(void)
{
	const struct vg_limits_copy *copy = &page->copies[page->generation & 1];

	if (copy->generation != page->generation || copy->device_count > VG_MAX_DEVICES ||
	    copy->checksum != checksum(copy))
		return NULL;
	return copy;
}

static void poke(struct fuzz_input *input)
{
	size_t at = fuzz_bits(input, 2) % sizeof *page;
	size_t length = 1 + fuzz_bits(input, 1) % 16;

	for (size_t i = 0; i < length && at + i < sizeof *page; i++)
		((uint8_t *)page)[at + i] = (uint8_t)fuzz_bits(input, 1);
}

// poke_field changes a relevant field and corrects the checksum.
static void poke_field(struct fuzz_input *input)
{
	struct vg_limits_copy *copy = &page->copies[fuzz_bits(input, 1) & 1];
	struct vg_limits_device *device = &copy->devices[fuzz_bits(input, 1) % VG_MAX_DEVICES];

	switch (fuzz_bits(input, 1) % 6) {
	case 0:
		copy->device_count = (uint32_t)fuzz_number(input, VG_MAX_DEVICES);
		break;
	case 1:
		device->memory_bytes = fuzz_number(input, 1000);
		break;
	case 2:
		device->context_bytes = fuzz_number(input, 1000);
		break;
	case 3:
		copy->generation = fuzz_number(input, page->generation);
		break;
	case 4:
		memset(device->uuid, (int)fuzz_bits(input, 1), sizeof device->uuid);
		break;
	default:
		page->generation = fuzz_number(input, page->generation);
		break;
	}
	copy->checksum = checksum(copy);
}

static void try_size(struct fuzz_input *input)
{
	static struct vg_pages pages;
	struct vg_limits_page saved = *page;
	off_t size = (off_t)(fuzz_bits(input, 2) % (2 * sizeof *page));
	struct vg_error error;

	memset(&pages, 0, sizeof pages);
	FUZZ_CHECK(ftruncate(page_fd, size) == 0);
	FUZZ_CHECK(size == sizeof *page || vg_limits_open(&pages, dir, &error) == -1);
	FUZZ_CHECK(ftruncate(page_fd, sizeof *page) == 0);
	*page = saved;
}

static void check_opened(const struct vg_pages *pages)
{
	const struct vg_limits_copy *copy = active();

	FUZZ_CHECK(page->magic == VG_LIMITS_MAGIC && page->version == VG_VERSION);
	FUZZ_CHECK(copy && pages->device_count == copy->device_count);
	for (uint32_t i = 0; i < copy->device_count; i++) {
		int found = vg_pages_find(pages, copy->devices[i].uuid);

		FUZZ_CHECK(found >= 0 && (uint32_t)found <= i);
	}
}

static bool same_devices(const struct vg_pages *pages, const struct vg_limits_copy *copy)
{
	if (copy->device_count != pages->device_count)
		return false;
	for (uint32_t i = 0; i < copy->device_count; i++)
		if (memcmp(copy->devices[i].uuid, pages->uuids[i], sizeof pages->uuids[i]) != 0)
			return false;
	return true;
}

// check_limits checks that the settings in force come from a whole copy. The interposer does not
// read a page again if the page's generation is verified, so that the limits stay.
static void check_limits(struct vg_pages *pages, uint64_t generation, const uint64_t *verified)
{
	const struct vg_limits_copy *copy = active();
	bool usable = copy && same_devices(pages, copy);

	for (uint32_t i = 0; i < pages->device_count; i++) {
		uint64_t limit = vg_limits_memory(pages, i);

		vg_limits_context(pages, i);
		FUZZ_CHECK(page->observed[i] >> VG_OBSERVED_LOOK_BITS || vg_usage_floor(pages, i) == 0);
		if (page->generation == generation)
			FUZZ_CHECK(limit == verified[i] || limit == 0);
		else
			FUZZ_CHECK(limit == (usable ? copy->devices[i].memory_bytes : 0));
	}
}

static void run(struct fuzz_input *input)
{
	static struct vg_pages pages;
	struct vg_error error;
	uint64_t verified[VG_MAX_DEVICES] = {0};
	uint64_t generation = 0;
	bool open = false;

	if (!page)
		set_up();
	*page = good;
	for (int steps = 0; input->size > 0 && steps < 12; steps++) {
		switch (fuzz_bits(input, 1) % 5) {
		case 0:
			poke(input);
			break;
		case 1:
			poke_field(input);
			break;
		case 2:
			try_size(input);
			break;
		case 3:
			if (open)
				vg_pages_close(&pages);
			memset(&pages, 0, sizeof pages);
			open = vg_limits_open(&pages, dir, &error) == 0;
			if (!open)
				break;
			check_opened(&pages);
			generation = page->generation;
			for (uint32_t i = 0; i < pages.device_count; i++)
				verified[i] = active()->devices[i].memory_bytes;
			break;
		default:
			if (!open)
				break;
			check_limits(&pages, generation, verified);
			// The page that was just read counts as verified.
			generation = page->generation;
			for (uint32_t i = 0; i < pages.device_count; i++)
				verified[i] = vg_limits_memory(&pages, i);
			break;
		}
	}
	if (open)
		vg_pages_close(&pages);
}

const struct fuzz_target fuzz_limits = {"limits", run};
