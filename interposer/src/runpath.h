// SPDX-License-Identifier: Apache-2.0

// The run paths of the objects that the loader has loaded.

#ifndef VG_RUNPATH_H
#define VG_RUNPATH_H

// Whose run paths, in the order in which the loader comes to them.
enum vg_runpath {
	vg_runpath_program_before, // the program's DT_RPATH: before $LD_LIBRARY_PATH
	vg_runpath_program_after,  // the program's DT_RUNPATH: after it
	vg_runpath_libraries,	   // both, of whatever else is loaded
};

// A vg_runpath_try returns non-zero where it has found something in the directory.
typedef int (*vg_runpath_try)(const char *directory, void *context);

// vg_runpath_search tries the directories of run paths in order until one is found,
// and returns whether one was.
int vg_runpath_search(enum vg_runpath which, vg_runpath_try try, void *context);

#endif
