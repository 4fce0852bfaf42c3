// SPDX-License-Identifier: Apache-2.0

// This test covers the lookup in the loader's cache. The cache has two formats, and may contain
// arbitrary bytes.

#include <stdint.h>
#include <string.h>

#include "check.h"
#include "load/ldcache.h"

struct head {
	char magic[20];
	uint32_t entries;
	uint32_t strings;
	uint32_t flags;
	uint32_t extensions;
	uint32_t unused[3];
};

struct entry {
	int32_t flags;
	uint32_t name;
	uint32_t path;
	uint32_t os;
	uint64_t capabilities;
};

static const char strings[] = "libc.so.6\0/lib/libc.so.6\0libcuda.so.1\0/a/libcuda.so.1\0/b/libcuda.so.1";
enum { name_libc = 0, path_libc = 10, name_cuda = 25, path_a = 38, path_b = 54 };

// build_cache appends a cache of three entries to `before` existing bytes. build_cache returns the
// total size.
static size_t build_cache(unsigned char *data, size_t before)
{
	struct entry entries[] = {
		{3, name_libc, path_libc, 0, 0}, {3, name_cuda, path_a, 0, 0}, {3, name_cuda, path_b, 0, 0},
	};
	struct head head = {.entries = 3, .strings = sizeof strings};
	uint32_t base = sizeof head + sizeof entries;

	memcpy(head.magic, "glibc-ld.so.cache1.1", 20);
	for (int i = 0; i < 3; i++) {
		entries[i].name += base;
		entries[i].path += base;
	}
	memcpy(data + before, &head, sizeof head);
	memcpy(data + before + sizeof head, entries, sizeof entries);
	memcpy(data + before + base, strings, sizeof strings);
	return before + base + sizeof strings;
}

struct found {
	int count;
	int stop_at;
	char last[64];
};

static int note(const char *path, void *context)
{
	struct found *found = context;

	snprintf(found->last, sizeof found->last, "%s", path);
	return ++found->count == found->stop_at;
}

static void test_forms(void)
{
	unsigned char data[1024] = {0};
	uint32_t entries = 5;
	size_t before = 16 + 5 * 12; // rounded up to 8: 80
	size_t size;

	for (int old = 0; old < 2; old++) {
		struct found found = {0, 0, ""};

		size = build_cache(data, old ? 80 : 0);
		if (old) {
			memcpy(data, "ld.so-1.7.0", 11);
			memcpy(data + 12, &entries, sizeof entries);
			CHECK(before <= 80);
		}
		CHECK(vg_ldcache_lookup(data, size, "libcuda.so.1", note, &found) == 0);
		CHECK_EQUAL(found.count, 2);
		CHECK(strcmp(found.last, "/b/libcuda.so.1") == 0);
		found = (struct found){0, 1, ""};
		CHECK(vg_ldcache_lookup(data, size, "libcuda.so.1", note, &found) == 1);
		CHECK(strcmp(found.last, "/a/libcuda.so.1") == 0);
		found = (struct found){0, 0, ""};
		CHECK(vg_ldcache_lookup(data, size, "libcuda.so", note, &found) == 0);
		CHECK_EQUAL(found.count, 0);
	}
}

// Under AddressSanitizer, this test finds reads out of bounds, because each cache is in a separate
// block of exactly its size.
static void test_broken_caches(void)
{
	unsigned char good[1024] = {0};
	size_t size = build_cache(good, 0);

	for (size_t length = 0; length <= size; length++) {
		unsigned char *cut = malloc(length ? length : 1);
		struct found found = {0, 0, ""};

		memcpy(cut, good, length);
		vg_ldcache_lookup(cut, length, "libcuda.so.1", note, &found);
		free(cut);
	}
	for (size_t at = 0; at < size; at++) {
		unsigned char *changed = malloc(size);
		struct found found = {0, 0, ""};

		memcpy(changed, good, size);
		changed[at] = 0xff;
		vg_ldcache_lookup(changed, size, "libcuda.so.1", note, &found);
		free(changed);
	}
}

int main(void)
{
	test_forms();
	test_broken_caches();
	return 0;
}
