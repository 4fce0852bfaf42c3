// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "fixture.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t fnv(const unsigned char *bytes, size_t size)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
	return hash;
}

static void fill_copy(struct vg_limits_copy *copy, uint64_t generation,
		      const struct vg_limits_device *devices, uint32_t count)
{
	memset(copy, 0, sizeof *copy);
	copy->generation = generation;
	copy->device_count = count;
	memcpy(copy->devices, devices, count * sizeof *devices);
	copy->checksum = fnv((const unsigned char *)copy, offsetof(struct vg_limits_copy, checksum));
}

static int write_file(const char *dir, const char *name, const void *content, size_t length,
		      size_t size)
{
	char path[4096];
	int fd;
	int failed;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	unlink(path);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0666);
	if (fd < 0)
		return -1;
	failed = write(fd, content, length) != (ssize_t)length || ftruncate(fd, (off_t)size);
	close(fd);
	return failed ? -1 : 0;
}

int test_pages_make(const char *dir, const struct vg_limits_device *devices, uint32_t count)
{
	static struct vg_limits_page page;
	struct vg_usage_header head = {
		.magic = VG_USAGE_MAGIC, .version = VG_VERSION, .slot_count = VG_MAX_SLOTS,
		.size = sizeof(struct vg_usage_page), .device_count = count,
	};

	page = (struct vg_limits_page){
		.magic = VG_LIMITS_MAGIC, .version = VG_VERSION, .size = sizeof page,
	};
	fill_copy(&page.copies[0], 0, devices, count);
	if (write_file(dir, "limits", &page, sizeof page, sizeof page))
		return -1;
	return write_file(dir, "usage", &head, sizeof head, sizeof(struct vg_usage_page));
}

static struct vg_limits_page *map_limits(const char *dir)
{
	struct vg_limits_page *page;
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/limits", dir);
	fd = open(path, O_RDWR);
	if (fd < 0)
		return NULL;
	page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return page == MAP_FAILED ? NULL : page;
}

int test_pages_observe(const char *dir, uint32_t device, uint64_t bytes)
{
	struct vg_limits_page *page = map_limits(dir);
	uint64_t look = UINT64_C(1) << VG_OBSERVED_LOOK_BITS;
	uint64_t next;

	if (!page)
		return -1;
	next = (page->observed[device] + 1) % look;
	__atomic_store_n(&page->observed[device], (bytes + look - 1) / look * look + next,
			 __ATOMIC_SEQ_CST);
	munmap(page, sizeof *page);
	return 0;
}

int test_pages_update(const char *dir, const struct vg_limits_device *devices, uint32_t count)
{
	struct vg_limits_page *page = map_limits(dir);
	uint64_t next;

	if (!page)
		return -1;
	next = page->generation + 1;
	fill_copy(&page->copies[next & 1], next, devices, count);
	__atomic_store_n(&page->generation, next, __ATOMIC_SEQ_CST);
	munmap(page, sizeof *page);
	return 0;
}

struct vg_limits_device test_device(uint8_t byte, uint64_t memory)
{
	struct vg_limits_device device = {.kind = VG_KIND_GPU, .compute_ppm = VG_PPM,
					  .memory_bytes = memory};

	memset(device.uuid, byte, sizeof device.uuid);
	return device;
}

// These variables are the last directory that test_dir made, and its process. Children share the
// directory's files, and must not remove these files.
static char own_dir[] = "/tmp/vg-test-XXXXXX";
static pid_t maker;

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
	(void)status;
	(void)kind;
	(void)walk;
	return remove(path);
}

static void remove_dir(void)
{
	if (getpid() == maker)
		nftw(own_dir, remove_entry, 4, FTW_DEPTH | FTW_PHYS);
}

const char *test_dir(void)
{
	if (maker == getpid())
		remove_dir();
	else
		atexit(remove_dir);
	maker = getpid();
	strcpy(own_dir + strlen(own_dir) - 6, "XXXXXX");
	return mkdtemp(own_dir);
}
