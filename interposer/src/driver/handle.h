// SPDX-License-Identifier: Apache-2.0

// This header covers handles of the driver, such as contexts and streams.

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

// vg_handle_context returns the calling thread's current context as a key, or 0 if the thread has
// no context.
uint64_t vg_handle_context(void);

// vg_handle_location reports whether memory at a location is charged, and sets `device` to the
// device of the charge. Host memory is not charged. A location without a type, or with an unknown
// type, counts as the current device.
bool vg_handle_location(const CUmemLocation *location, CUdevice *device);

#endif
