// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "finder.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/machine.h"
#include "base/text.h"
#include "ldcache.h"
#include "runpath.h"

static const char *const vg_default_dirs[] = {
	"/lib/" VG_MULTIARCH, "/usr/lib/" VG_MULTIARCH, "/lib64", "/usr/lib64", "/lib", "/usr/lib",
};

enum {
	vg_max_segments = 128,
	vg_max_note = 64 * 1024,
	vg_max_cache = 16 * 1024 * 1024,
};

static int vg_read_at(int fd, void *buffer, size_t size, uint64_t offset)
{
	if (offset > INT64_MAX)
		return -1;
	return pread(fd, buffer, size, (off_t)offset) == (ssize_t)size ? 0 : -1;
}

// vg_elf is a library's file. vg_elf_open reads the start of the file in one call, because the
// start usually contains all examined parts.
struct vg_elf {
	int fd;
	size_t size;
	unsigned char start[2048];
};

static void vg_elf_open(struct vg_elf *elf, int fd)
{
	ssize_t size = pread(fd, elf->start, sizeof elf->start, 0);

	elf->fd = fd;
	elf->size = size < 0 ? 0 : (size_t)size;
}

static int vg_elf_read(const struct vg_elf *elf, void *buffer, size_t size, uint64_t offset)
{
	if (offset > elf->size || size > elf->size - offset)
		return vg_read_at(elf->fd, buffer, size, offset);
	memcpy(buffer, elf->start + offset, size);
	return 0;
}

// vg_note_is_ours reports whether the notes contain the note that stubs.S puts into each library of
// the interposer.
static int vg_note_is_ours(const unsigned char *notes, size_t size)
{
	static const char owner[] = "nri-vgpu";
	size_t at = 0;

	while (size - at >= sizeof(ElfW(Nhdr))) {
		ElfW(Nhdr) note;
		size_t name;
		size_t content;

		memcpy(&note, notes + at, sizeof note);
		at += sizeof note;
		name = ((size_t)note.n_namesz + 3) & ~(size_t)3;
		content = ((size_t)note.n_descsz + 3) & ~(size_t)3;
		if (name > size - at || content > size - at - name)
			return 0;
		if (note.n_namesz == sizeof owner && memcmp(notes + at, owner, sizeof owner) == 0)
			return 1;
		at += name + content;
	}
	return 0;
}

static int vg_segment_is_ours(const struct vg_elf *elf, const ElfW(Phdr) *segment)
{
	unsigned char *notes;
	int ours = 0;

	if (segment->p_type != PT_NOTE || segment->p_filesz > vg_max_note)
		return 0;
	notes = malloc(segment->p_filesz + 1);
	if (!notes)
		return 1; // the file could be an interposer library
	if (vg_elf_read(elf, notes, segment->p_filesz, segment->p_offset) == 0)
		ours = vg_note_is_ours(notes, segment->p_filesz);
	free(notes);
	return ours;
}

static int vg_is_foreign_library(int fd)
{
	ElfW(Ehdr) head;
	ElfW(Phdr) segment;
	struct vg_elf elf;

	vg_elf_open(&elf, fd);
	if (vg_elf_read(&elf, &head, sizeof head, 0) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
	    head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != VG_ELF_MACHINE ||
	    head.e_type != ET_DYN || head.e_phentsize != sizeof segment ||
	    head.e_phnum > vg_max_segments)
		return 0;
	for (uint64_t i = 0; i < head.e_phnum; i++) {
		if (vg_elf_read(&elf, &segment, sizeof segment, head.e_phoff + i * sizeof segment))
			return 0;
		if (vg_segment_is_ours(&elf, &segment))
			return 0;
	}
	return 1;
}

int vg_finder_candidate(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	int good;

	if (fd < 0)
		return 0;
	good = vg_is_foreign_library(fd);
	close(fd);
	return good;
}

static int vg_try_dir(const char *dir, size_t length, const char *name, char path[PATH_MAX])
{
	size_t at = 0;

	// An empty entry of a search path is the current directory.
	if (length == 0 || dir[0] != '/')
		at = vg_text_append(path, PATH_MAX, at, "./", 2);
	at = vg_text_append(path, PATH_MAX, at, dir, length);
	at = vg_text_append(path, PATH_MAX, at, "/", 1);
	at = vg_text_append(path, PATH_MAX, at, name, strlen(name));
	return at < PATH_MAX && vg_finder_candidate(path) ? 0 : -1;
}

static int vg_search_environment(const char *name, char path[PATH_MAX])
{
	const char *dirs = getauxval(AT_SECURE) ? NULL : getenv("LD_LIBRARY_PATH");

	while (dirs && *dirs) {
		size_t length = 0;

		// strcspn would read one more page of the C library at each start.
		while (dirs[length] && dirs[length] != ':' && dirs[length] != ';')
			length++;
		if (vg_try_dir(dirs, length, name, path) == 0)
			return 0;
		dirs += length;
		if (*dirs)
			dirs++;
	}
	return -1;
}

static int vg_accept_cached(const char *cached, void *context)
{
	char *path = context;

	if (cached[0] != '/' || strlen(cached) >= PATH_MAX || !vg_finder_candidate(cached))
		return 0;
	strcpy(path, cached);
	return 1;
}

static int vg_search_cache(const char *name, char path[PATH_MAX])
{
	int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
	unsigned char *data = NULL;
	off_t size;
	int found = -1;

	if (fd < 0)
		return -1;
	size = lseek(fd, 0, SEEK_END);
	if (size > 0 && size <= vg_max_cache)
		data = malloc((size_t)size);
	if (data && vg_read_at(fd, data, (size_t)size, 0) == 0 &&
	    vg_ldcache_lookup(data, (size_t)size, name, vg_accept_cached, path))
		found = 0;
	free(data);
	close(fd);
	return found;
}

struct vg_wanted {
	const char *name;
	char *path;
};

static int vg_try_runpath(const char *directory, void *context)
{
	const struct vg_wanted *wanted = context;

	return vg_try_dir(directory, strlen(directory), wanted->name, wanted->path) == 0;
}

static int vg_search_runpaths(enum vg_runpath which, const char *name, char path[PATH_MAX])
{
	struct vg_wanted wanted = {name, path};

	return vg_runpath_search(which, vg_try_runpath, &wanted) ? 0 : -1;
}

static int vg_search_defaults(const char *name, char path[PATH_MAX])
{
	for (size_t i = 0; i < sizeof vg_default_dirs / sizeof *vg_default_dirs; i++)
		if (vg_try_dir(vg_default_dirs[i], strlen(vg_default_dirs[i]), name, path) == 0)
			return 0;
	return -1;
}

// The loader searches the run path of the calling library before the cache. vg_finder_library does
// not know the calling library, and searches all libraries' run paths last.
int vg_finder_library(const char *name, char path[PATH_MAX])
{
	if (vg_search_runpaths(vg_runpath_program_before, name, path) == 0 ||
	    vg_search_environment(name, path) == 0 ||
	    vg_search_runpaths(vg_runpath_program_after, name, path) == 0 ||
	    vg_search_cache(name, path) == 0 || vg_search_defaults(name, path) == 0)
		return 0;
	return vg_search_runpaths(vg_runpath_libraries, name, path);
}
