// SPDX-License-Identifier: Apache-2.0

// This header declares the lookup in /etc/ld.so.cache, in the format of glibc 2.2 and newer. The
// file of glibc before 2.32 begins with entries in an older format.

#ifndef VG_LDCACHE_H
#define VG_LDCACHE_H

#include <stddef.h>

// vg_ldcache_lookup calls `found` for each path of `name` in the loader cache, until `found`
// returns non-zero. vg_ldcache_lookup returns the callback's value, or 0. `data` has `size` bytes,
// which may be arbitrary.
int vg_ldcache_lookup(const unsigned char *data, size_t size, const char *name,
		      int (*found)(const char *path, void *context), void *context);

#endif
