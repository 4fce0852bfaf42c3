// SPDX-License-Identifier: Apache-2.0

#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*wl_get_proc)(const char *name, void **function, int version,
				uint64_t flags, int *status);

struct wl_entry {
	size_t offset; // of the member in struct wl_driver
	const char *name;
	int version;
	uint64_t flags;
	const char *exported;
};

static const struct wl_entry wl_entries[] = {
#define WL_ENTRY(member, name, version, flags, exported, ...) \
	{offsetof(struct wl_driver, member), name, version, flags, exported},
	WL_DRIVER_FUNCTIONS(WL_ENTRY)
#undef WL_ENTRY
};

static void *wl_find(void *library, wl_get_proc get_proc,
		     const struct wl_entry *entry)
{
	void *function = NULL;
	int status = 0;

	if (!get_proc)
		return dlsym(library, entry->exported);
	if (get_proc(entry->name, &function, entry->version, entry->flags,
		     &status) != CUDA_SUCCESS)
		return NULL;
	return function;
}

int wl_driver_open(struct wl_driver *driver, const char *path,
		   enum wl_lookup lookup, char *why, size_t why_size)
{
	wl_get_proc get_proc = NULL;

	memset(driver, 0, sizeof *driver);
	driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!driver->library) {
		snprintf(why, why_size, "%s: install the NVIDIA driver, or add its "
			 "directory to LD_LIBRARY_PATH", dlerror());
		return -1;
	}
	if (lookup == WL_LOOKUP_GETPROC) {
		void *symbol = dlsym(driver->library, "cuGetProcAddress_v2");

		if (!symbol) {
			snprintf(why, why_size,
				 "%s has no cuGetProcAddress_v2 "
				 "(try --lookup dlsym)", path);
			return -1;
		}
		memcpy(&get_proc, &symbol, sizeof get_proc);
	}
	for (size_t i = 0; i < sizeof wl_entries / sizeof *wl_entries; i++) {
		void *found = wl_find(driver->library, get_proc, &wl_entries[i]);

		memcpy((char *)driver + wl_entries[i].offset, &found,
		       sizeof found);
	}
	if (!driver->init) {
		snprintf(why, why_size, "%s has no cuInit", path);
		return -1;
	}
	return 0;
}

void wl_driver_forget_later(struct wl_driver *driver)
{
	int version = 0;

	if (WL_CALL(driver, driver_version, &version) != CUDA_SUCCESS)
		return;
	for (size_t i = 0; i < sizeof wl_entries / sizeof *wl_entries; i++)
		if (wl_entries[i].version > version)
			memset((char *)driver + wl_entries[i].offset, 0, sizeof(void *));
}

static const void *wl_address(const struct wl_driver *driver, const struct wl_entry *entry)
{
	const void *address;

	memcpy(&address, (const char *)driver + entry->offset, sizeof address);
	return address;
}

size_t wl_driver_differences(const struct wl_driver *one, const struct wl_driver *other,
			     void (*tell)(const char *name))
{
	size_t both = 0;

	for (size_t i = 0; i < sizeof wl_entries / sizeof *wl_entries; i++) {
		const void *a = wl_address(one, &wl_entries[i]);
		const void *b = wl_address(other, &wl_entries[i]);

		if (!a || !b)
			continue;
		both++;
		if (a != b)
			tell(wl_entries[i].exported);
	}
	return both;
}

const char *wl_error_name(const struct wl_driver *driver, CUresult result)
{
	const char *name = NULL;

	if (WL_CALL(driver, error_name, result, &name) == CUDA_SUCCESS && name)
		return name;
	return result == CUDA_SUCCESS ? "CUDA_SUCCESS" : "unknown";
}

void wl_uuid_text(const CUuuid *uuid, char text[41])
{
	char *at = text + sprintf(text, "GPU");

	for (int i = 0; i < 16; i++) {
		if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", uuid->bytes[i]);
	}
}
