// SPDX-License-Identifier: Apache-2.0

// This test covers damaged and incomplete pages, which are refused with an error that names the
// fault.

#define _GNU_SOURCE
#include "pages/pages.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "pages/limits.h"
#include "pages/slot.h"

static char dir[256];

static void make_pages(void)
{
	struct vg_limits_device devices[] = {test_device(1, 1000), test_device(2, 2000)};

	snprintf(dir, sizeof dir, "%s", test_dir());
	CHECK(test_pages_make(dir, devices, 2) == 0);
}

static int open_pages(struct vg_pages *pages, struct vg_error *error)
{
	memset(pages, 0, sizeof *pages);
	if (vg_limits_open(pages, dir, error))
		return -1;
	return vg_slot_map(pages, error);
}

static void edit(const char *name, off_t offset, const void *bytes, size_t size)
{
	char path[512];
	int fd;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	fd = open(path, O_WRONLY);
	CHECK(fd >= 0 && pwrite(fd, bytes, size, offset) == (ssize_t)size);
	close(fd);
}

static void expect_error(const char *what)
{
	struct vg_pages pages;
	struct vg_error error;

	CHECK(open_pages(&pages, &error) == -1);
	if (!strstr(error.text, what)) {
		fprintf(stderr, "error is \"%s\", want \"%s\" in it\n", error.text, what);
		abort();
	}
	CHECK(!pages.usage);
	vg_pages_close(&pages);
	CHECK(!pages.limits);
}

static void test_good_pages(void)
{
	struct vg_pages pages;
	struct vg_error error;
	uint8_t uuid[16];

	make_pages();
	CHECK(open_pages(&pages, &error) == 0);
	CHECK_EQUAL(pages.device_count, 2);
	CHECK_EQUAL(vg_limits_memory(&pages, 0), 1000);
	CHECK_EQUAL(vg_limits_memory(&pages, 1), 2000);
	memset(uuid, 2, sizeof uuid);
	CHECK_EQUAL(vg_pages_find(&pages, uuid), 1);
	memset(uuid, 3, sizeof uuid);
	CHECK_EQUAL(vg_pages_find(&pages, uuid), -1);
	vg_pages_close(&pages);
}

static void test_every_flipped_byte_is_noticed(void)
{
	size_t start = offsetof(struct vg_limits_page, copies);
	char path[512];

	for (size_t i = 0; i < sizeof(struct vg_limits_copy); i++) {
		unsigned char byte;
		int fd;

		make_pages();
		snprintf(path, sizeof path, "%s/limits", dir);
		fd = open(path, O_RDWR);
		CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)(start + i)) == 1);
		byte ^= 1;
		CHECK(pwrite(fd, &byte, 1, (off_t)(start + i)) == 1);
		close(fd);
		expect_error("corrupt");
		unlink(path);
		i += 7 * (i % 3); // a sample of the 1048 bytes, because each byte costs a page
	}
}

static void test_wrong_files(void)
{
	uint32_t future = VG_VERSION + 1;
	char path[512];

	make_pages();
	edit("limits", 0, "memory", 6);
	expect_error("not a page");
	make_pages();
	edit("limits", 8, &future, sizeof future);
	expect_error("layout version");
	make_pages();
	snprintf(path, sizeof path, "%s/limits", dir);
	CHECK(truncate(path, 4095) == 0);
	expect_error("bytes instead of");
	CHECK(truncate(path, 0) == 0);
	expect_error("not a page");
	CHECK(unlink(path) == 0);
	expect_error("cannot open");
	CHECK(mkdir(path, 0700) == 0);
	expect_error("not a page");
	make_pages();
	snprintf(path, sizeof path, "%s/usage", dir);
	CHECK(truncate(path, 1 << 20) == 0);
	expect_error("bytes instead of");
	CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
	expect_error("not a page");
	make_pages();
	edit("usage", offsetof(struct vg_usage_header, slot_count), "\xff", 1);
	expect_error("corrupt");
}

static void test_page_that_breaks_later_grants_nothing(void)
{
	struct vg_limits_device other = test_device(9, 5000);
	struct vg_pages pages;
	struct vg_error error;

	make_pages();
	CHECK(open_pages(&pages, &error) == 0);
	CHECK(test_pages_update(dir, &other, 1) == 0); // other GPUs: another container's page
	CHECK_EQUAL(vg_limits_memory(&pages, 0), 0);
	CHECK_EQUAL(vg_limits_memory(&pages, 1), 0);
	vg_pages_close(&pages);
}

int main(void)
{
	test_good_pages();
	test_every_flipped_byte_is_noticed();
	test_wrong_files();
	test_page_that_breaks_later_grants_nothing();
	return 0;
}
