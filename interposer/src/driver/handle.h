// SPDX-License-Identifier: Apache-2.0

// This header covers handles of the driver: contexts, streams and others.

#ifndef VG_HANDLE_H
#define VG_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

static CUstream const vg_legacy_stream = (CUstream)1;
static CUstream const vg_per_thread_stream = (CUstream)2;

// vg_handle_key returns a handle as a key of the table.
static inline uint64_t vg_handle_key(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

// vg_handle_context returns the calling thread's context as a key; 0: none.
uint64_t vg_handle_context(void);

// vg_handle_location reports whether memory at a location is charged, and sets `device` to the
// device that is charged. Host memory is not charged. Locations of unknown or no type count as the
// current device.
bool vg_handle_location(const CUmemLocation *location, CUdevice *device);

#endif
