// SPDX-License-Identifier: Apache-2.0

// This header declares the search for the driver's real library. The search follows the dynamic
// loader's path, and skips the interposer's library of the same name.

#ifndef VG_FINDER_H
#define VG_FINDER_H

#include <limits.h>

// vg_finder_library writes the path of the library called `name` (its SONAME) to `path`.
// vg_finder_library returns 0, or -1 if no directory has the library. vg_finder_library searches,
// in this order: the program's DT_RPATH, $LD_LIBRARY_PATH, the program's DT_RUNPATH,
// /etc/ld.so.cache; the loader's default directories; the run paths of all loaded libraries.
// vg_finder_library skips files of other architectures, and all libraries of this project, of any
// version.
int vg_finder_library(const char *name, char path[PATH_MAX]);

// vg_finder_candidate reports whether the file may be the driver's library.
int vg_finder_candidate(const char *path);

#endif
