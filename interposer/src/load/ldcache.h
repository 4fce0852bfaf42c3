// SPDX-License-Identifier: Apache-2.0

// Reading /etc/ld.so.cache, in the format that glibc has written since 2.2: alone (since 2.32), or
// behind the older format's entries.

#ifndef VG_LDCACHE_H
#define VG_LDCACHE_H

#include <stddef.h>

// vg_ldcache_lookup calls `found` for each path of `name` in the loader cache, until `found`
// returns non-zero. vg_ldcache_lookup returns the callback's value, or 0. `data` has `size` bytes
// of any content.
int vg_ldcache_lookup(const unsigned char *data, size_t size, const char *name,
		      int (*found)(const char *path, void *context), void *context);

#endif
