// SPDX-License-Identifier: Apache-2.0

// This file replaces functions of the management library. NVML reports the container's limit as a
// GPU's memory, and the container's used memory as the GPU's used memory. All other values are the
// driver's.

#include <stdatomic.h>
#include <string.h>

#include "nvml.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/number.h"
#include "base/text.h"
#include "base/thread.h"
#include "pages/limits.h"
#include "pages/slot.h"
#include "pages/usage.h"

typedef struct {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total;
	unsigned long long reserved;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_v2_t;

typedef int (*vg_memory_fn)(void *device, nvmlMemory_t *memory);
typedef int (*vg_memory_v2_fn)(void *device, nvmlMemory_v2_t *memory);
typedef int (*vg_uuid_fn)(void *device, char *uuid, unsigned length);
typedef const char *(*vg_string_fn)(int result);

int vg_nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory);
int vg_nvmlDeviceGetMemoryInfo_v2(void *device, nvmlMemory_v2_t *memory);
const char *vg_nvmlErrorString(int result);

struct vg_pages *vg_nvml_pages(void)
{
	static struct vg_mutex mutex = VG_MUTEX(VG_RANK_NVML);
	static struct vg_pages pages;
	static _Atomic int opened;
	const char *dir = vg_pages_dir();
	struct vg_error error = {""};
	int kept;

	if (atomic_load(&opened))
		return &pages;
	kept = vg_thread_keep();
	vg_mutex_lock(&mutex);
	if (!atomic_load(&opened)) {
		if (!dir)
			vg_log(VG_LOG_PAGES, "failed to report the GPU's memory: there is no limits page at "
					     "/run/nri-vgpu/limits");
		else if ((!pages.limits && vg_limits_open(&pages, dir, &error)) || vg_slot_map(&pages, &error))
			vg_log(VG_LOG_PAGES, "failed to report the GPU's memory: %s", error.text);
		else
			atomic_store(&opened, 1);
	}
	vg_mutex_unlock(&mutex);
	vg_thread_let(kept);
	return atomic_load(&opened) ? &pages : NULL;
}

static int vg_hex(char c)
{
	if (vg_text_is_digit(c))
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// vg_parse_uuid parses "GPU-…" or "MIG-…", and returns 0. vg_parse_uuid returns -1 for any other
// text.
static int vg_parse_uuid(const char *text, uint8_t uuid[16])
{
	size_t digits = 0;

	if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
		return -1;
	for (text += 4; *text && digits < 32; text++) {
		int digit = vg_hex(*text);

		if (*text == '-')
			continue;
		if (digit < 0)
			return -1;
		uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] << 4 | digit : digit);
		digits++;
	}
	return digits == 32 && *text == '\0' ? 0 : -1;
}

int vg_nvml_index(const struct vg_pages *pages, void *device)
{
	char text[96] = "";
	uint8_t uuid[16];

	if (((vg_uuid_fn)(void (*)(void))vg_real(VG_SYM_nvmlDeviceGetUUID))(device, text, sizeof text) ||
	    vg_parse_uuid(text, uuid))
		return -1;
	return vg_pages_find(pages, uuid);
}

// vg_nvml_used returns the memory that live processes use. vg_nvml_used only reads the page, and
// does not empty the slots of dead processes.
static uint64_t vg_nvml_used(struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = vg_slots_in_use(pages);
	bool live[VG_MAX_SLOTS];
	uint64_t sum = 0;

	vg_slots_live(pages, live);
	for (uint32_t i = 0; i < slots; i++)
		if (live[i])
			sum = vg_add_saturating(sum, vg_load(&vg_slot_device(pages, i, device)->used));
	return vg_max(sum, vg_usage_floor(pages, device));
}

// vg_nvml_describe replaces the driver's figures by the container's. A GPU that is not assigned to
// the container has no free memory. Monitors divide by the total, which therefore is not 0.
static int vg_nvml_describe(void *device, unsigned long long *total, unsigned long long *available,
			    unsigned long long *used)
{
	struct vg_pages *pages = vg_nvml_pages();
	uint64_t limit;
	int index;

	if (!pages)
		return NVML_ERROR_NO_PERMISSION;
	index = vg_nvml_index(pages, device);
	limit = index < 0 ? *total : vg_min(*total, vg_limits_memory(pages, (uint32_t)index));
	*total = limit;
	*used = index < 0 ? limit : vg_min(limit, vg_nvml_used(pages, (uint32_t)index));
	*available = vg_min(*available, limit - *used);
	return NVML_SUCCESS;
}

int vg_nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory)
{
	int result = ((vg_memory_fn)(void (*)(void))vg_real(VG_SYM_nvmlDeviceGetMemoryInfo))(device, memory);

	return result ? result : vg_nvml_describe(device, &memory->total, &memory->free, &memory->used);
}

int vg_nvmlDeviceGetMemoryInfo_v2(void *device, nvmlMemory_v2_t *memory)
{
	int result = ((vg_memory_v2_fn)(void (*)(void))vg_real(VG_SYM_nvmlDeviceGetMemoryInfo_v2))(device, memory);

	if (result)
		return result;
	// Memory that the driver reserves for itself does not count against the limit.
	memory->reserved = 0;
	return vg_nvml_describe(device, &memory->total, &memory->free, &memory->used);
}

const char *vg_nvmlErrorString(int result)
{
	vg_function real = vg_real_lookup(VG_SYM_nvmlErrorString);

	return real ? ((vg_string_fn)(void (*)(void))real)(result) : "NVML library not found";
}
