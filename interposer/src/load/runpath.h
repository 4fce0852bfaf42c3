// SPDX-License-Identifier: Apache-2.0

// This header covers the run paths of the objects that the loader has loaded.

#ifndef VG_RUNPATH_H
#define VG_RUNPATH_H

// vg_runpath names run paths, in the order in which the loader searches them.
enum vg_runpath {
	vg_runpath_program_before, // the program's DT_RPATH: before $LD_LIBRARY_PATH
	vg_runpath_program_after,  // the program's DT_RUNPATH: after $LD_LIBRARY_PATH
	vg_runpath_libraries,	   // DT_RPATH and DT_RUNPATH of all other loaded objects
};

// vg_runpath_try returns non-zero if it finds the wanted file in the directory.
typedef int (*vg_runpath_try)(const char *directory, void *context);

// vg_runpath_search calls `try` for each directory of the run paths, in order, until `try` returns
// non-zero. vg_runpath_search reports whether `try` returned non-zero.
int vg_runpath_search(enum vg_runpath which, vg_runpath_try try, void *context);

#endif
