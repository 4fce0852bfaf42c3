// SPDX-License-Identifier: Apache-2.0

// This header covers the dynamic loader's functions. The interposer does not import these
// functions, for two reasons. glibc before 2.34 has the functions in libdl.so.2, which a preloaded
// library must not require: without libdl.so.2, every process of the container would die. Names
// such as dlopen would also resolve to preloaded libraries, including this library. Therefore
// vg_loader_get looks up the functions in the C library itself.

#ifndef VG_LOADER_H
#define VG_LOADER_H

#include <stdint.h>

struct vg_loader {
	void *(*open)(const char *name, int flags);
	void *(*symbol)(void *handle, const char *name);
	// info is NULL if the C library does not have the function.
	int (*info)(void *handle, int request, void *answer);
};

// vg_loader_get fills `loader` and returns 0, or returns -1 if the process has no dynamic loading.
int vg_loader_get(struct vg_loader *loader);

// vg_exports is the table of a loaded library's exports. A search in the table takes a tenth of the
// loader's time, because the loader also searches the libraries on which that library depends.
struct vg_exports {
	uintptr_t base;
	const char *strings;
	const void *symbols;
	const uint32_t *hash;
};

// vg_loader_read_exports fills `exports` and returns 0. If the table cannot be read,
// vg_loader_read_exports returns -1, and the caller must query the loader.
int vg_loader_read_exports(struct vg_exports *exports, const struct vg_loader *loader, void *handle);

// vg_loader_find_export returns the address of a function, whose name has this vg_text_hash.
// vg_loader_find_export returns NULL if the library does not have the function, or if the loader must
// resolve the function.
void *vg_loader_find_export(const struct vg_exports *exports, const char *name, uint32_t hash);

// vg_object_paths are the run paths of a loaded object. `rpath` or `runpath` is NULL if the object
// does not have that path.
struct vg_object_paths {
	const char *rpath;
	const char *runpath;
};

struct dl_phdr_info;

// vg_loader_object_paths fills `paths` and returns 0, or returns -1 if the object has no strings.
int vg_loader_object_paths(const struct dl_phdr_info *info, struct vg_object_paths *paths);

// vg_loader_self_path writes the path of this library's file, or "" if the loader does not report
// the path. vg_loader_self_path writes at most `size` bytes.
void vg_loader_self_path(char *path, unsigned long size);

#endif
