// SPDX-License-Identifier: Apache-2.0

// This header covers memsets and copies within a device as work, identified by their kind and size.

#ifndef VG_FILL_H
#define VG_FILL_H

#include "time/place.h"
#include "time/throttle.h"

enum { vg_bytes_per_us = 1500000 }; // assumed speed of work whose size has not been measured

enum vg_fill_kind { VG_FILL = 1, VG_FILL_ROWS, VG_COPY, VG_COPY_ROWS, VG_COPY_BATCH };

static inline uint64_t vg_fill_prior(uint64_t bytes)
{
	return 1000 + bytes / (vg_bytes_per_us / 1000);
}

// vg_fill_key returns the same key for sizes that differ by less than 1/8.
static inline uint64_t vg_fill_key(enum vg_fill_kind kind, uint64_t bytes)
{
	int bits = 63 - __builtin_clzll(bytes | 8);

	return vg_work_key((uint64_t)bits << 3 | (bytes >> (bits - 3) & 7), (uint64_t)kind + 1000);
}

// vg_on_host reports whether an address of unknown kind lies on the host.
static inline bool vg_on_host(CUdeviceptr address)
{
	unsigned type = CU_MEMORYTYPE_HOST;

	return VG_CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ||
	       type == CU_MEMORYTYPE_HOST;
}

#define VG_BYTES(kind, bytes, stream, per_thread, call) \
	VG_WORK(vg_fill_key(kind, bytes), vg_fill_prior(bytes), stream, per_thread, call)

#endif
