// SPDX-License-Identifier: Apache-2.0

// This file finds the directories of DT_RPATH and DT_RUNPATH, which the loader searches. Programs
// built by Nix find the driver in these directories.

#define _GNU_SOURCE
#include "runpath.h"

#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/machine.h"
#include "loader.h"

// vg_lib_dirs has the values of $LIB in the order of the attempts: Debian's value, then the values
// of other distributions. The loader does not report its value of $LIB.
static const char *const vg_lib_dirs[] = {"lib/" VG_MULTIARCH, "lib64", "lib"};

enum { vg_max_text = 1024 * 1024 };

// vg_paths is a list of the objects' run paths, each after the directory of its object. Each run
// path and each directory ends with a zero byte. vg_collect copies the strings, so that no file is
// examined under the loader's lock.
struct vg_paths {
	enum vg_runpath which;
	size_t seen; // objects
	char *text;
	size_t length;
};

static void vg_paths_add(struct vg_paths *paths, const char *text)
{
	size_t size = strlen(text) + 1;
	char *grown;

	if (size > vg_max_text - paths->length)
		return;
	grown = realloc(paths->text, paths->length + size);
	if (!grown)
		return;
	memcpy(grown + paths->length, text, size);
	paths->text = grown;
	paths->length += size;
}

// vg_directory writes the directory of an object, or "" if the directory is unknown or must not be
// used.
static void vg_directory(const char *name, int is_program, char directory[PATH_MAX])
{
	ssize_t length = -1;
	char *slash;

	directory[0] = '\0';
	if (getauxval(AT_SECURE))
		return;
	if (is_program)
		length = readlink("/proc/self/exe", directory, PATH_MAX - 1);
	else if (name[0] == '/')
		length = snprintf(directory, PATH_MAX, "%s", name);
	directory[length > 0 && length < PATH_MAX ? length : 0] = '\0';
	slash = strrchr(directory, '/');
	if (slash)
		*slash = '\0';
}

// vg_paths_add_object adds an object's directory and run path. vg_paths_add_object is not inlined
// into vg_collect, because the buffer of vg_paths_add_object takes a page of stack. The loader
// calls vg_collect for every loaded object.
__attribute__((noinline))
static void vg_paths_add_object(struct vg_paths *paths, const char *object, int is_program, const char *path)
{
	char directory[PATH_MAX];

	vg_directory(object, is_program, directory);
	vg_paths_add(paths, directory);
	vg_paths_add(paths, path);
}

static int vg_collect(struct dl_phdr_info *info, size_t size, void *context)
{
	struct vg_paths *paths = context;
	int is_program = paths->seen++ == 0;
	struct vg_object_paths own;
	const char *path;

	(void)size;
	if (is_program != (paths->which != vg_runpath_libraries))
		return 0;
	if (vg_loader_object_paths(info, &own))
		return 0;
	// The loader ignores an object's DT_RPATH if the object has a DT_RUNPATH.
	path = own.runpath ? own.runpath : own.rpath;
	if (!path || (paths->which == vg_runpath_program_before && own.runpath) ||
	    (paths->which == vg_runpath_program_after && !own.runpath))
		return 0;
	vg_paths_add_object(paths, info->dlpi_name, is_program, path);
	return 0;
}

// vg_token_length returns the length of a token, with or without braces, at the start of a text.
// vg_token_length returns 0 if the text starts with another token.
static size_t vg_token_length(const char *text, const char *token)
{
	size_t length = strlen(token);

	if (text[1] == '{')
		return strncmp(text + 2, token, length) == 0 && text[2 + length] == '}' ? length + 3 : 0;
	return strncmp(text + 1, token, length) == 0 ? length + 1 : 0;
}

// vg_expand writes an entry with its tokens expanded. vg_expand returns -1 if a token is unknown.
// vg_expand sets `lib` if the entry contains $LIB.
static int vg_expand(const char *entry, size_t length, const char *origin, const char *lib_dir,
		     char directory[PATH_MAX], int *lib)
{
	size_t at = 0;

	for (size_t i = 0; i < length;) {
		const char *with = NULL;
		size_t token = 0;
		int written;

		if (entry[i] == '$' && (token = vg_token_length(entry + i, "ORIGIN")) != 0)
			with = origin;
		else if (entry[i] == '$' && (token = vg_token_length(entry + i, "LIB")) != 0)
			with = lib_dir, *lib = 1;
		if (entry[i] == '$' && (!with || !*with))
			return -1;
		written = with ? snprintf(directory + at, PATH_MAX - at, "%s", with) :
				 snprintf(directory + at, PATH_MAX - at, "%c", entry[i]);
		if (written < 0 || (size_t)written >= PATH_MAX - at)
			return -1;
		at += (size_t)written;
		i += token ? token : 1;
	}
	directory[at] = '\0';
	return at > 0 ? 0 : -1;
}

static int vg_try_entry(const char *entry, size_t length, const char *origin,
			vg_runpath_try try, void *context)
{
	char directory[PATH_MAX];

	for (size_t i = 0; i < sizeof vg_lib_dirs / sizeof *vg_lib_dirs; i++) {
		int lib = 0;

		if (vg_expand(entry, length, origin, vg_lib_dirs[i], directory, &lib))
			return 0;
		if (try(directory, context))
			return 1;
		if (!lib)
			return 0;
	}
	return 0;
}

int vg_runpath_search(enum vg_runpath which, vg_runpath_try try, void *context)
{
	struct vg_paths paths = {.which = which};
	const char *origin;
	int found = 0;

	dl_iterate_phdr(vg_collect, &paths);
	for (size_t at = 0; !found && at < paths.length;) {
		const char *entry;

		origin = paths.text + at;
		entry = origin + strlen(origin) + 1;
		at = (size_t)(entry - paths.text) + strlen(entry) + 1;
		while (!found && *entry) {
			size_t length = strcspn(entry, ":");

			found = vg_try_entry(entry, length, origin, try, context);
			entry += length + (entry[length] == ':');
		}
	}
	free(paths.text);
	return found;
}
