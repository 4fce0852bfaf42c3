// SPDX-License-Identifier: Apache-2.0

// The names by which a program may open the driver other than by its SONAME,
// which the loader itself answers with this library.

#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "loader.h"

// vg_dlopen_target is called by the stub of dlopen, which then jumps to what it
// returns. It may replace the name.
void *vg_dlopen_target(const char *name, const char **replaced);

// vg_is_versioned says whether a file name is `base`, or that and a version,
// such as libcuda.so.1 or libcuda.so.580.95.05.
static bool vg_is_versioned(const char *file, const char *base)
{
	size_t length = strlen(base);

	if (strncmp(file, base, length) != 0)
		return false;
	for (file += length; *file; file++)
		if (*file != '.' && !isdigit((unsigned char)*file))
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

// vg_no_dlopen stands where the C library has no dlopen.
static void *vg_no_dlopen(const char *name, int flags)
{
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

void *vg_dlopen_target(const char *name, const char **replaced)
{
	const char *driver = vg_driver_name(name);

	if (driver)
		*replaced = driver;
	return vg_next_dlopen();
}
