// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

#define VG_FIXED_DIR "/run/nri-vgpu"

const char *vg_pages_dir(void)
{
	if (access(VG_FIXED_DIR "/limits", F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR))
		return VG_FIXED_DIR;
	return getauxval(AT_SECURE) ? NULL : getenv("NRI_VGPU_DIR");
}

_Static_assert(offsetof(struct vg_usage_header, slot_count) == offsetof(struct vg_page_head, slot_count) &&
	       offsetof(struct vg_usage_header, size) == offsetof(struct vg_page_head, size),
	       "the start of the usage page");

int vg_pages_open_file(const char *path, int flags, uint64_t magic, size_t size, struct stat *info,
		       struct vg_page_head *head, struct vg_error *error)
{
	int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		vg_error_set(error, "cannot open %s: %s; is it mounted into the container?", path,
			     strerror(errno));
		return -1;
	}
	if (vg_file_stat(fd, info) || pread(fd, head, sizeof *head, 0) < (ssize_t)offsetof(struct vg_page_head, slot_count) || head->magic != magic)
		vg_error_set(error, "%s is not a page of nri-vgpu; re-create the container", path);
	else if (head->version != VG_VERSION)
		vg_error_set(error, "%s has layout version %u, this library reads %u; re-create the container",
			     path, head->version, VG_VERSION);
	else if (info->st_size != (off_t)size)
		vg_error_set(error, "%s has %lld bytes instead of %zu; re-create the container", path,
			     (long long)info->st_size, size);
	else
		return fd;
	close(fd);
	return -1;
}

static void vg_unmap(const void *mapped, size_t size)
{
	if (mapped)
		munmap((void *)(uintptr_t)mapped, size);
}

void vg_pages_close(struct vg_pages *pages)
{
	vg_unmap(pages->limits, sizeof *pages->limits);
	vg_unmap(pages->usage, sizeof *pages->usage);
	pages->limits = NULL;
	pages->usage = NULL;
}

int vg_pages_find(const struct vg_pages *pages, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < pages->device_count; i++)
		if (memcmp(pages->uuids[i], uuid, sizeof pages->uuids[i]) == 0)
			return (int)i;
	return -1;
}

