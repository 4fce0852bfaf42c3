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

// vg_runpath_try returns non-zero if it has found something in the directory.
typedef int (*vg_runpath_try)(const char *directory, void *context);

// vg_runpath_search tries the directories of run paths in order until `try` finds something, and
// reports whether it did.
int vg_runpath_search(enum vg_runpath which, vg_runpath_try try, void *context);

#endif
