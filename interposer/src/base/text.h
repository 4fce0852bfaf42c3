// SPDX-License-Identifier: Apache-2.0

// This header declares functions for strings in buffers, without the C library's functions.
// snprintf is slow at a process's start, and its table of characters is one more page to read.

#ifndef VG_TEXT_H
#define VG_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// vg_text_is_digit reports whether a character is one of 0 to 9.
static inline bool vg_text_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

// vg_text_hash returns the GNU hash of a name, which ELF files use. vg_text_hash_more returns the hash
// of a name with this hash, followed by `more`.
static inline uint32_t vg_text_hash_more(uint32_t hash, const char *more)
{
	for (; *more; more++)
		hash = hash * 33 + (unsigned char)*more;
	return hash;
}

static inline uint32_t vg_text_hash(const char *name)
{
	return vg_text_hash_more(5381, name);
}

// vg_text_append appends text to a string of length `at` in a buffer of `size` bytes, and returns
// the new length. If the buffer has no room, vg_text_append appends nothing and returns `size`.
size_t vg_text_append(char *to, size_t size, size_t at, const char *text, size_t length);

// vg_text_join writes `dir` followed by `name`, or "" if the buffer has no room.
void vg_text_join(char *to, size_t size, const char *dir, const char *name);

#endif
