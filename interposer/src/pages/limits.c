// SPDX-License-Identifier: Apache-2.0

#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mutex.h"
#include "base/number.h"
#include "base/text.h"

enum { vg_read_attempts = 1000 };

// vg_checksum returns the FNV-1a hash of the bytes before the checksum. Most words are zero. The
// eight steps for the bytes of a zero word are one multiplication by the eighth power of the prime.
static uint64_t vg_checksum(const struct vg_limits_copy *copy)
{
	const uint64_t prime = UINT64_C(0x100000001b3);
	const uint64_t power = prime * prime * prime * prime * prime * prime * prime * prime;
	const uint64_t *words = (const uint64_t *)(const void *)copy;
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < offsetof(struct vg_limits_copy, checksum) / sizeof *words; i++) {
		const unsigned char *bytes = (const unsigned char *)&words[i];

		if (!words[i])
			hash *= power;
		else
			for (size_t j = 0; j < sizeof *words; j++)
				hash = (hash ^ bytes[j]) * prime;
	}
	return hash;
}

_Static_assert(offsetof(struct vg_limits_copy, checksum) % sizeof(uint64_t) == 0, "whole words");

static void vg_copy_words(struct vg_limits_copy *to, const struct vg_limits_copy *from)
{
	uint64_t *target = (uint64_t *)(void *)to;
	const uint64_t *source = (const uint64_t *)(const void *)from;

	for (size_t i = 0; i < sizeof *to / sizeof *target; i++)
		target[i] = vg_load(&source[i]);
}

// vg_limits_read copies the active limits. If the copy on the page changes during the read, its
// generation is no longer active, and vg_limits_read retries.
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
		// A container that MPS limits to a part of the GPU's SMs may use the GPU all the
		// time.
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

	vg_mutex_lock(&pages->verify);
	generation = vg_load(&pages->limits->generation);
	if (generation + 1 != atomic_load(&pages->verified)) {
		if (vg_limits_read(pages->limits, &copy) == 0 && vg_same_devices(pages, &copy)) {
			vg_limits_take(pages, &copy);
		} else {
			for (uint32_t i = 0; i < pages->device_count; i++)
				atomic_store(&pages->memory[i], 0);
			// The page is not read again before its generation changes.
			atomic_store(&pages->verified, generation + 1);
			vg_log(VG_LOG_PAGES, "found the limits page corrupt; refusing memory until the "
					     "page is re-created");
		}
	}
	vg_mutex_unlock(&pages->verify);
}

uint64_t vg_limits_memory(struct vg_pages *pages, uint32_t device)
{
	// This load follows the publication of a claim: see vg_reserve_hold_at_once.
	if (vg_load(&pages->limits->generation) + 1 != atomic_load(&pages->verified))
		vg_limits_follow(pages);
	return atomic_load(&pages->memory[device]);
}

uint64_t vg_limits_context(struct vg_pages *pages, uint32_t device)
{
	vg_limits_look(pages);
	return atomic_load(&pages->context[device]);
}

struct vg_lease vg_limits_lease(const struct vg_pages *pages, uint32_t device)
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
	struct vg_page_head head = {0};
	struct stat info;
	int fd = vg_pages_open_file(path, O_RDONLY, VG_LIMITS_MAGIC, sizeof *pages->limits, &info, &head, error);
	void *mapped;

	if (fd < 0)
		return -1;
	mapped = mmap(NULL, sizeof *pages->limits, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (mapped == MAP_FAILED)
		vg_error_set(error, "cannot map %s: %s", path, strerror(errno));
	else
		pages->limits = mapped;
	close(fd);
	return mapped == MAP_FAILED ? -1 : 0;
}

static int vg_limits_begin(struct vg_pages *pages, const char *dir, struct vg_error *error)
{
	struct vg_limits_copy copy;
	char path[PATH_MAX];

	vg_text_join(path, sizeof path, dir, "/limits");
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

int vg_limits_open(struct vg_pages *pages, const char *dir, struct vg_error *error)
{
	pages->slot = vg_no_slot;
	for (size_t i = 0; i < VG_MAX_DEVICES; i++)
		vg_mutex_set_rank(&pages->slow[i], VG_RANK_SLOW);
	vg_mutex_set_rank(&pages->look, VG_RANK_LOOK);
	vg_mutex_set_rank(&pages->verify, VG_RANK_VERIFY);
	vg_text_join(pages->usage_path, sizeof pages->usage_path, dir, "/usage");
	if (vg_limits_begin(pages, dir, error)) {
		vg_pages_close(pages);
		return -1;
	}
	return 0;
}
