// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

#define VG_FIXED_DIR "/run/nri-vgpu"

void vg_error_set(struct vg_error *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->text, sizeof error->text, format, arguments);
	va_end(arguments);
}

const char *vg_pages_dir(void)
{
	if (access(VG_FIXED_DIR "/limits", F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR))
		return VG_FIXED_DIR;
	return getauxval(AT_SECURE) ? NULL : getenv("NRI_VGPU_DIR");
}

// vg_head is the start of a page. slot_count and size are the usage page's alone.
struct vg_head {
	uint64_t magic;
	uint32_t version;
	uint32_t slot_count;
	uint64_t size;
};

_Static_assert(offsetof(struct vg_usage_header, slot_count) == offsetof(struct vg_head, slot_count) &&
	       offsetof(struct vg_usage_header, size) == offsetof(struct vg_head, size),
	       "the start of the usage page");

// vg_open_page opens a file that must be a page of the given magic and size.
static int vg_open_page(const char *path, int flags, uint64_t magic, size_t size, struct stat *info,
			struct vg_head *head, struct vg_error *error)
{
	int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		vg_error_set(error, "cannot open %s: %s; is it mounted into the container?", path,
			     strerror(errno));
		return -1;
	}
	if (vg_fstat(fd, info) || pread(fd, head, sizeof *head, 0) < (ssize_t)offsetof(struct vg_head, slot_count) || head->magic != magic)
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

static uint64_t vg_checksum(const struct vg_limits_copy *copy)
{
	const unsigned char *byte = (const unsigned char *)copy;
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < offsetof(struct vg_limits_copy, checksum); i++)
		hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
	return hash;
}

enum { vg_read_attempts = 1000 };

static void vg_copy_words(struct vg_limits_copy *to, const struct vg_limits_copy *from)
{
	uint64_t *target = (uint64_t *)(void *)to;
	const uint64_t *source = (const uint64_t *)(const void *)from;

	for (size_t i = 0; i < sizeof *to / sizeof *target; i++)
		target[i] = vg_load(&source[i]);
}

// vg_limits_read copies the active limits out. A copy that changes under the
// reader's hands belongs to a generation that is no longer active: then it
// tries again.
static int vg_limits_read(const struct vg_limits_page *page, struct vg_limits_copy *copy)
{
	for (int i = 0; i < vg_read_attempts; i++) {
		uint64_t generation = vg_load(&page->generation);

		vg_copy_words(copy, &page->copies[generation & 1]);
		if (copy->generation == generation && copy->device_count <= VG_MAX_DEVICES &&
		    copy->checksum == vg_checksum(copy))
			return 0;
		sched_yield();
	}
	return -1;
}

static void vg_limits_take(struct vg_pages *pages, const struct vg_limits_copy *copy)
{
	bool throttled = false;

	for (uint32_t i = 0; i < copy->device_count; i++) {
		bool mps = (copy->devices[i].flags & VG_FLAG_MPS) != 0;
		// What MPS holds to a part of the GPU has all of its time.
		uint32_t part = copy->devices[i].compute_ppm;
		uint32_t ppm = mps ? VG_PPM : part;

		atomic_store(&pages->memory[i], copy->devices[i].memory_bytes);
		atomic_store(&pages->context[i], copy->devices[i].context_bytes);
		atomic_store(&pages->compute[i], ppm ? ppm : 1);
		atomic_store(&pages->shares[i], (copy->devices[i].flags & VG_FLAG_SHARE) != 0);
		atomic_store(&pages->mps[i], mps ? part : 0);
		atomic_store(&pages->sms[i], copy->devices[i].multiprocessors);
		throttled |= ppm < VG_PPM;
	}
	atomic_store(&pages->throttled, throttled);
	atomic_store(&pages->verified, copy->generation + 1);
}

static bool vg_same_devices(const struct vg_pages *pages, const struct vg_limits_copy *copy)
{
	if (copy->device_count != pages->device_count)
		return false;
	for (uint32_t i = 0; i < copy->device_count; i++)
		if (memcmp(copy->devices[i].uuid, pages->uuids[i], sizeof pages->uuids[i]) != 0)
			return false;
	return true;
}

void vg_limits_follow(struct vg_pages *pages)
{
	struct vg_limits_copy copy;
	uint64_t generation;

	vg_lock(&pages->verify);
	generation = vg_load(&pages->limits->generation);
	if (generation + 1 != atomic_load(&pages->verified)) {
		if (vg_limits_read(pages->limits, &copy) == 0 && vg_same_devices(pages, &copy)) {
			vg_limits_take(pages, &copy);
		} else {
			for (uint32_t i = 0; i < pages->device_count; i++)
				atomic_store(&pages->memory[i], 0);
			// It is not read again before its generation changes.
			atomic_store(&pages->verified, generation + 1);
			vg_say(VG_SAY_PAGES, "the limits page has become corrupt; no more memory is "
					     "granted until it is re-created");
		}
	}
	vg_unlock(&pages->verify);
}

uint64_t vg_memory_limit(struct vg_pages *pages, uint32_t device)
{
	vg_limits_look(pages);
	return atomic_load(&pages->memory[device]);
}

uint64_t vg_context_hint(struct vg_pages *pages, uint32_t device)
{
	vg_limits_look(pages);
	return atomic_load(&pages->context[device]);
}

struct vg_lease vg_compute_lease(const struct vg_pages *pages, uint32_t device)
{
	struct vg_lease lease = {0, 0};
	uint64_t word;

	if (!atomic_load_explicit(&pages->shares[device], memory_order_relaxed))
		return lease;
	word = vg_load(&pages->limits->leases[device]);
	lease.ppm = (uint32_t)vg_min(word & ((UINT64_C(1) << VG_LEASE_PPM_BITS) - 1), VG_PPM);
	lease.until = word >> VG_LEASE_PPM_BITS << VG_LEASE_UNIT_BITS;
	return lease;
}

static int vg_limits_map(struct vg_pages *pages, const char *path, struct vg_error *error)
{
	struct vg_head head = {0};
	struct stat info;
	int fd = vg_open_page(path, O_RDONLY, VG_LIMITS_MAGIC, sizeof *pages->limits, &info, &head, error);
	void *mapped;

	if (fd < 0)
		return -1;
	mapped = mmap(NULL, sizeof *pages->limits, PROT_READ, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		vg_error_set(error, "cannot map %s: %s", path, strerror(errno));
	else
		pages->limits = mapped;
	close(fd);
	return mapped == MAP_FAILED ? -1 : 0;
}

static int vg_limits_open(struct vg_pages *pages, const char *dir, struct vg_error *error)
{
	struct vg_limits_copy copy;
	char path[PATH_MAX];

	vg_join(path, sizeof path, dir, "/limits");
	if (vg_limits_map(pages, path, error))
		return -1;
	if (vg_limits_read(pages->limits, &copy)) {
		vg_error_set(error, "%s is corrupt; re-create the container", path);
		return -1;
	}
	pages->device_count = copy.device_count;
	for (uint32_t i = 0; i < copy.device_count; i++)
		memcpy(pages->uuids[i], copy.devices[i].uuid, sizeof pages->uuids[i]);
	vg_limits_take(pages, &copy);
	return 0;
}

int vg_usage_open(struct vg_pages *pages, struct vg_error *error)
{
	struct vg_head head = {0};
	struct stat info;
	int fd = vg_open_page(pages->usage_path, O_RDWR, VG_USAGE_MAGIC, sizeof *pages->usage, &info, &head, error);

	if (fd < 0)
		return -1;
	if (head.slot_count != VG_MAX_SLOTS || head.size != sizeof *pages->usage) {
		vg_error_set(error, "%s is corrupt; re-create the container", pages->usage_path);
		close(fd);
		return -1;
	}
	pages->usage_inode = info.st_ino;
	pages->usage_device = info.st_dev;
	return fd;
}

int vg_pages_open(struct vg_pages *pages, const char *dir, struct vg_error *error)
{
	pages->slot = vg_no_slot;
	for (size_t i = 0; i < VG_MAX_DEVICES; i++)
		vg_rank_set(&pages->slow[i], VG_RANK_SLOW);
	vg_rank_set(&pages->look, VG_RANK_LOOK);
	vg_rank_set(&pages->verify, VG_RANK_VERIFY);
	vg_join(pages->usage_path, sizeof pages->usage_path, dir, "/usage");
	if (vg_limits_open(pages, dir, error)) {
		vg_pages_close(pages);
		return -1;
	}
	return 0;
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

uint64_t vg_memory_used(struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = vg_slots_in_use(pages);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < slots; i++)
		sum = vg_add_saturating(sum, vg_slot_used(pages, i, device));
	return vg_max(sum, vg_memory_floor(pages, device));
}

// vg_observed_bytes is what a look found, without its number.
static uint64_t vg_observed_bytes(uint64_t word)
{
	return word >> VG_OBSERVED_LOOK_BITS << VG_OBSERVED_LOOK_BITS;
}

uint64_t vg_memory_floor(struct vg_pages *pages, uint32_t device)
{
	const uint64_t *observed = &pages->limits->observed[device];
	uint64_t floor;
	uint64_t word;
	uint64_t own;

	if (__builtin_expect(vg_observed_bytes(vg_load(observed)) == 0, 1))
		return 0;
	// Each look is the agent's newest word on all processes; from there on,
	// this process knows about itself.
	vg_lock(&pages->look);
	word = vg_load(observed);
	own = atomic_load(&pages->own[device]);
	if (word != pages->looked[device]) {
		pages->looked[device] = word;
		pages->own_then[device] = own;
	}
	floor = vg_add_saturating(vg_observed_bytes(word), own);
	floor -= vg_min(floor, pages->own_then[device]);
	vg_unlock(&pages->look);
	return vg_observed_bytes(word) ? floor : 0;
}
