// SPDX-License-Identifier: Apache-2.0

// This file handles the names other than the SONAME by which a program may open the driver. For the
// SONAME, the loader itself returns this library in the first namespace.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "loader.h"

// vg_dlopen_target returns the function to which the stub of dlopen jumps. vg_dlopen_target may
// replace the name.
void *vg_dlopen_target(const char *name, const char **replaced);

// vg_dlopen_target_in is vg_dlopen_target for dlmopen.
void *vg_dlopen_target_in(long space, const char *name, const char **replaced);

// vg_is_versioned reports whether a file name is `base`, or `base` with a version, such as
// libcuda.so.1 or libcuda.so.580.95.05.
static bool vg_is_versioned(const char *file, const char *base)
{
	size_t length = strlen(base);

	if (strncmp(file, base, length) != 0)
		return false;
	for (file += length; *file; file++)
		if (*file != '.' && !vg_text_is_digit(*file))
			return false;
	return true;
}

static const char *vg_driver_name(const char *name)
{
	const char *slash = name ? strrchr(name, '/') : NULL;
	const char *file = slash ? slash + 1 : name;

	if (!file)
		return NULL;
	if (vg_is_versioned(file, "libcuda.so"))
		return "libcuda.so.1";
	if (vg_is_versioned(file, "libnvidia-ml.so"))
		return "libnvidia-ml.so.1";
	return NULL;
}

// vg_no_dlopen and vg_no_dlmopen replace the functions that a C library lacks.
static void *vg_no_dlopen(const char *name, int flags)
{
	(void)name;
	(void)flags;
	return NULL;
}

static void *vg_no_dlmopen(long space, const char *name, int flags)
{
	(void)space;
	(void)name;
	(void)flags;
	return NULL;
}

// vg_next_dlopen returns the dlopen that the program would call without this library. That function
// is in another preloaded library or in the C library.
static void *vg_next_dlopen(void)
{
	static _Atomic(void *) found;
	void *next = atomic_load(&found);
	void *(*none)(const char *name, int flags) = vg_no_dlopen;
	struct vg_loader loader;

	if (next)
		return next;
	if (vg_loader_get(&loader) == 0) {
		next = loader.symbol(RTLD_NEXT, "dlopen");
		if (!next)
			memcpy(&next, &loader.open, sizeof next);
	} else {
		memcpy(&next, &none, sizeof next);
	}
	atomic_store(&found, next);
	return next;
}

static void *vg_next_dlmopen(void)
{
	static _Atomic(void *) found;
	void *next = atomic_load(&found);
	void *(*none)(long space, const char *name, int flags) = vg_no_dlmopen;
	struct vg_loader loader;

	if (next)
		return next;
	if (vg_loader_get(&loader) == 0)
		next = loader.symbol(RTLD_NEXT, "dlmopen");
	if (!next)
		memcpy(&next, &none, sizeof next);
	atomic_store(&found, next);
	return next;
}

void *vg_dlopen_target(const char *name, const char **replaced)
{
	const char *driver = vg_driver_name(name);

	if (driver)
		*replaced = driver;
	return vg_next_dlopen();
}

// vg_beside returns the path of the library `name` in this library's directory. vg_beside returns
// NULL if the path is too long or memory is exhausted.
static char *vg_beside(const char *name)
{
	char path[PATH_MAX];
	char *slash;

	vg_loader_self_path(path, sizeof path);
	slash = strrchr(path, '/');
	if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= sizeof path)
		return NULL;
	strcpy(slash + 1, name);
	return strdup(path);
}

// vg_own_path returns the path of the interposer's library for this name.
static const char *vg_own_path(const char *driver)
{
	static _Atomic(char *) paths[2];
	_Atomic(char *) *known = &paths[strcmp(driver, "libcuda.so.1") == 0];
	char *path = atomic_load(known);
	char *made;

	if (path)
		return path;
	made = vg_beside(driver);
	if (!made || atomic_compare_exchange_strong(known, &path, made))
		return made;
	free(made);
	return path;
}

// The loader returns this library for a driver's name only in the first namespace. In any other
// namespace, this library must be loaded once more, and the process gets a second slot.
void *vg_dlopen_target_in(long space, const char *name, const char **replaced)
{
	const char *driver = vg_driver_name(name);

	if (driver && space != LM_ID_BASE)
		driver = vg_own_path(driver);
	if (driver)
		*replaced = driver;
	return vg_next_dlmopen();
}
