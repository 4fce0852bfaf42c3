// SPDX-License-Identifier: Apache-2.0

// The dynamic loader's functions. They are not imported: glibc before 2.34 has
// them in libdl.so.2, which a preloaded library must not ask for (where it is
// missing, every process of the container would die), and a name such as
// dlopen would be answered by preloaded libraries, ours among them. So they are
// looked up in the C library itself.

#ifndef VG_LOADER_H
#define VG_LOADER_H

#include <stdint.h>

struct vg_loader {
	void *(*open)(const char *name, int flags);
	void *(*symbol)(void *handle, const char *name);
	// NULL where the C library has none.
	int (*info)(void *handle, int request, void *answer);
};

// vg_loader_get fills `loader` and returns 0, or returns -1 where the process
// has no dynamic loading at all.
int vg_loader_get(struct vg_loader *loader);

// vg_exports is the table of what a loaded library exports. Looking a name up in it takes a
// tenth of what the loader takes, which also searches the libraries that it depends on.
struct vg_exports {
	uintptr_t base;
	const char *strings;
	const void *symbols;
	const uint32_t *hash;
};

// vg_exports_read fills `exports` and returns 0, or returns -1 where the table is not one
// that can be read: the loader has to be asked.
int vg_exports_read(struct vg_exports *exports, const struct vg_loader *loader, void *handle);

// vg_exports_find returns the address of a function, or NULL where the library itself does
// not have it or the loader has to resolve it.
void *vg_exports_find(const struct vg_exports *exports, const char *name);

// vg_object_paths are the run paths of a loaded object, NULL where it has none.
struct vg_object_paths {
	const char *rpath;
	const char *runpath;
};

struct dl_phdr_info;

// vg_loader_object_paths fills `paths` and returns 0, or returns -1 where the object
// has no strings.
int vg_loader_object_paths(const struct dl_phdr_info *info, struct vg_object_paths *paths);

// vg_loader_self_path is the path of the file that this code was loaded from,
// or "" where the loader does not say; it writes at most `size` bytes.
void vg_loader_self_path(char *path, unsigned long size);

#endif
