// SPDX-License-Identifier: Apache-2.0

// This header declares the lookup in /etc/ld.so.cache, in the format that glibc has written since
// 2.2. Since 2.32 the file has only this format. Before 2.32 the entries of an older format come
// first.

#ifndef VG_LDCACHE_H
#define VG_LDCACHE_H

#include <stddef.h>

// vg_ldcache_lookup calls `found` for each path of `name` in the loader cache, until `found`
// returns non-zero. vg_ldcache_lookup returns the callback's value, or 0. `data` has `size` bytes,
// which may be arbitrary.
int vg_ldcache_lookup(const unsigned char *data, size_t size, const char *name,
		      int (*found)(const char *path, void *context), void *context);

#endif
