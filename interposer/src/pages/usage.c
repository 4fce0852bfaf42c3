// SPDX-License-Identifier: Apache-2.0

#include "usage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mutex.h"
#include "base/number.h"

int vg_usage_open(struct vg_pages *pages, struct vg_error *error)
{
	struct vg_page_head head = {0};
	struct stat info;
	int fd = vg_pages_open_file(pages->usage_path, O_RDWR, VG_USAGE_MAGIC, sizeof *pages->usage, &info, &head, error);

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

uint64_t vg_usage_memory(struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = vg_slots_in_use(pages);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < slots; i++)
		sum = vg_add_saturating(sum, vg_slot_used(pages, i, device));
	return vg_max(sum, vg_usage_floor(pages, device));
}

// vg_observed_bytes returns the bytes of an observation, without its number.
static uint64_t vg_observed_bytes(uint64_t word)
{
	return word >> VG_OBSERVED_LOOK_BITS << VG_OBSERVED_LOOK_BITS;
}

uint64_t vg_usage_floor(struct vg_pages *pages, uint32_t device)
{
	const uint64_t *observed = &pages->limits->observed[device];
	uint64_t floor;
	uint64_t word;
	uint64_t own;

	if (__builtin_expect(vg_observed_bytes(vg_load(observed)) == 0, 1))
		return 0;
	// The value is the agent's newest observation of all processes. After an observation, this
	// process adds its own changes.
	vg_mutex_lock(&pages->look);
	word = vg_load(observed);
	own = atomic_load(&pages->own[device]);
	if (word != pages->looked[device]) {
		pages->looked[device] = word;
		pages->own_then[device] = own;
	}
	floor = vg_add_saturating(vg_observed_bytes(word), own);
	floor -= vg_min(floor, pages->own_then[device]);
	vg_mutex_unlock(&pages->look);
	return vg_observed_bytes(word) ? floor : 0;
}
