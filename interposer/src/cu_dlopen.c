// SPDX-License-Identifier: Apache-2.0

// The names by which a program may open the driver other than by its SONAME,
// which the loader itself answers with this library in the namespace of programs.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "loader.h"

// vg_dlopen_target is called by the stub of dlopen, which then jumps to what it
// returns. It may replace the name.
void *vg_dlopen_target(const char *name, const char **replaced);

// vg_dlmopen_target does so for dlmopen.
void *vg_dlmopen_target(long space, const char *name, const char **replaced);

// vg_is_versioned says whether a file name is `base`, or that and a version,
// such as libcuda.so.1 or libcuda.so.580.95.05.
static bool vg_is_versioned(const char *file, const char *base)
{
	size_t length = strlen(base);

	if (strncmp(file, base, length) != 0)
		return false;
	for (file += length; *file; file++)
		if (*file != '.' && !vg_is_digit(*file))
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

// vg_no_dlopen and vg_no_dlmopen stand where the C library has none.
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

// vg_next_dlopen is the dlopen that would have been called without us: another
// preloaded library's, or the C library's.
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

// vg_beside is the path of a library in the directory of this one, NULL if there
// is none.
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

// vg_own_path is our library of this name, by its path.
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

// A name that the loader answers with this library in its first namespace stands
// for the driver in any other: there, we have to be loaded once more, and the
// process has a second slot.
void *vg_dlmopen_target(long space, const char *name, const char **replaced)
{
	const char *driver = vg_driver_name(name);

	if (driver && space != LM_ID_BASE)
		driver = vg_own_path(driver);
	if (driver)
		*replaced = driver;
	return vg_next_dlmopen();
}
