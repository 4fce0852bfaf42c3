// SPDX-License-Identifier: Apache-2.0

// What a library exports is found as the loader finds it, or left to the loader. The
// arguments are exported.c's libraries: with a table that can be read, one in the old
// format, and one with versions.

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "check.h"
#include "loader.h"

static struct vg_loader loader;

static void *opened(const char *path)
{
	void *library = loader.open(path, RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
	return library;
}

static void test_readable(const char *path)
{
	void *library = opened(path);
	struct vg_exports exports;

	CHECK_EQUAL(vg_exports_read(&exports, &loader, library), 0);
	CHECK(vg_exports_find(&exports, "exported_function"));
	CHECK(vg_exports_find(&exports, "exported_function") == loader.symbol(library, "exported_function"));
	CHECK(!vg_exports_find(&exports, "exported_resolved")); // the loader asks a function for it
	CHECK(!vg_exports_find(&exports, "exported_data"));
	CHECK(!vg_exports_find(&exports, "exported"));
	CHECK(!vg_exports_find(&exports, ""));
	CHECK(!vg_exports_find(&exports, "getppid")); // of a library that this one depends on
	CHECK(loader.symbol(library, "getppid"));
}

static void test_unreadable(const char *path)
{
	struct vg_exports exports;

	CHECK_EQUAL(vg_exports_read(&exports, &loader, opened(path)), -1);
}

static void test_no_info(const char *path)
{
	struct vg_loader without = {.open = loader.open, .symbol = loader.symbol};
	struct vg_exports exports;

	CHECK_EQUAL(vg_exports_read(&exports, &without, opened(path)), -1);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	CHECK_EQUAL(vg_loader_get(&loader), 0);
	CHECK(loader.info);
	test_readable(argv[1]);
	test_unreadable(argv[2]);
	test_unreadable(argv[3]);
	test_no_info(argv[1]);
	return 0;
}
