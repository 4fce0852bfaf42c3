// SPDX-License-Identifier: Apache-2.0

// This test covers the search in a library's exports. The result comes from the loader, or is NULL if
// the loader must resolve the name. The arguments are the libraries of exported.c: one with a
// readable table, one in the old format, and one with versions.

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "base/text.h"
#include "check.h"
#include "load/loader.h"

static struct vg_loader loader;

static void *opened(const char *path)
{
	void *library = loader.open(path, RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
	return library;
}

static void *found(const struct vg_exports *exports, const char *name)
{
	return vg_loader_find_export(exports, name, vg_text_hash(name));
}

static void test_readable(const char *path)
{
	void *library = opened(path);
	struct vg_exports exports;

	CHECK_EQUAL(vg_loader_read_exports(&exports, &loader, library), 0);
	CHECK(found(&exports, "exported_function"));
	CHECK(found(&exports, "exported_function") == loader.symbol(library, "exported_function"));
	CHECK(!found(&exports, "exported_resolved")); // resolved by a function
	CHECK(!found(&exports, "exported_data"));
	CHECK(!found(&exports, "exported"));
	CHECK(!found(&exports, ""));
	CHECK(!found(&exports, "getppid")); // exported by a dependency
	CHECK(loader.symbol(library, "getppid"));
}

static void test_unreadable(const char *path)
{
	struct vg_exports exports;

	CHECK_EQUAL(vg_loader_read_exports(&exports, &loader, opened(path)), -1);
}

static void test_no_info(const char *path)
{
	struct vg_loader without = {.open = loader.open, .symbol = loader.symbol};
	struct vg_exports exports;

	CHECK_EQUAL(vg_loader_read_exports(&exports, &without, opened(path)), -1);
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
