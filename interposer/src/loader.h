// SPDX-License-Identifier: Apache-2.0

// The dynamic loader's functions. They are not imported: glibc before 2.34 has
// them in libdl.so.2, which a preloaded library must not ask for (where it is
// missing, every process of the container would die), and a name such as
// dlopen would be answered by preloaded libraries, ours among them. So they are
// looked up in the C library itself.

#ifndef VG_LOADER_H
#define VG_LOADER_H

struct vg_loader {
	void *(*open)(const char *name, int flags);
	void *(*symbol)(void *handle, const char *name);
};

// vg_loader_get fills `loader` and returns 0, or returns -1 where the process
// has no dynamic loading at all.
int vg_loader_get(struct vg_loader *loader);

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
