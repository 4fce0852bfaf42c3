// SPDX-License-Identifier: Apache-2.0

// Finding the driver's real library: along the path that the dynamic loader
// would search, without our own library answering to the name.

#ifndef VG_FINDER_H
#define VG_FINDER_H

#include <limits.h>
#include <stddef.h>

// vg_find_library writes the path of the library called `name` (its SONAME) to
// `path` and returns 0, or returns -1 if there is none. It looks into the
// program's DT_RPATH, $LD_LIBRARY_PATH, the program's DT_RUNPATH, /etc/ld.so.cache,
// the loader's default directories, and the run paths of all libraries that are
// loaded, in this order, and passes over files that are not of this architecture and over
// every library of this project, of whatever version.
int vg_find_library(const char *name, char path[PATH_MAX]);

// vg_find_candidate reports whether the file may be the driver's library.
int vg_find_candidate(const char *path);

// vg_cache_lookup calls `found` for each path that the loader cache in `data`
// (of `size` bytes, which may hold anything) has for `name`, until it returns
// non-zero; that is returned, or 0.
int vg_cache_lookup(const unsigned char *data, size_t size, const char *name,
		    int (*found)(const char *path, void *context), void *context);

#endif
