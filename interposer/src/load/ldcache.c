// SPDX-License-Identifier: Apache-2.0

#include "ldcache.h"

#include <stdint.h>
#include <string.h>

#define VG_CACHE_OLD "ld.so-1.7.0"
#define VG_CACHE_NEW "glibc-ld.so.cache1.1"

struct vg_cache_head {
	char magic[sizeof VG_CACHE_NEW - 1];
	uint32_t entries;
	uint32_t strings;
	uint8_t flags;
	uint8_t padding[3];
	uint32_t extensions;
	uint32_t unused[3];
};

struct vg_cache_entry {
	int32_t flags;
	uint32_t name; // `name` and `path` are offsets from the head
	uint32_t path;
	uint32_t os;
	uint64_t capabilities;
};

// The older format consists of a head of 11 bytes, the number of entries, and the entries.
enum { vg_old_entries_at = 12, vg_old_entry = 12, vg_old_head = 16 };

// vg_cache_start returns where the newer format starts in the file, or `size`.
static size_t vg_cache_start(const unsigned char *data, size_t size)
{
	uint32_t entries;
	size_t start;

	if (size < vg_old_head || memcmp(data, VG_CACHE_OLD, sizeof VG_CACHE_OLD - 1) != 0)
		return 0;
	memcpy(&entries, data + vg_old_entries_at, sizeof entries);
	if (entries > size / vg_old_entry)
		return size;
	start = vg_old_head + (size_t)entries * vg_old_entry;
	start = (start + 7) & ~(size_t)7;
	return start < size ? start : size;
}

// vg_cache_string returns the string at the offset, or NULL if the string does not end within the
// data.
static const char *vg_cache_string(const unsigned char *data, size_t size, uint32_t offset)
{
	if (offset >= size || !memchr(data + offset, '\0', size - offset))
		return NULL;
	return (const char *)data + offset;
}

int vg_ldcache_lookup(const unsigned char *data, size_t size, const char *name,
		      int (*found)(const char *path, void *context), void *context)
{
	size_t start = vg_cache_start(data, size);
	struct vg_cache_head head;

	data += start;
	size -= start;
	if (size < sizeof head)
		return 0;
	memcpy(&head, data, sizeof head);
	if (memcmp(head.magic, VG_CACHE_NEW, sizeof head.magic) != 0 ||
	    head.entries > (size - sizeof head) / sizeof(struct vg_cache_entry))
		return 0;
	for (uint32_t i = 0; i < head.entries; i++) {
		struct vg_cache_entry entry;
		const char *key;
		const char *path;
		int result;

		memcpy(&entry, data + sizeof head + i * sizeof entry, sizeof entry);
		key = vg_cache_string(data, size, entry.name);
		path = vg_cache_string(data, size, entry.path);
		if (!key || !path || strcmp(key, name) != 0)
			continue;
		result = found(path, context);
		if (result)
			return result;
	}
	return 0;
}
