// SPDX-License-Identifier: Apache-2.0

// This header covers handles of the driver, such as contexts and streams.

#ifndef VG_HANDLE_H
#define VG_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

static CUstream const vg_legacy_stream = (CUstream)1;
static CUstream const vg_per_thread_stream = (CUstream)2;

// vg_handle_is_created reports whether a program created a stream. A created stream belongs to one
// context. The handle of a default stream means another stream in each context.
static inline bool vg_handle_is_created(CUstream stream)
{
	return stream && stream != vg_legacy_stream && stream != vg_per_thread_stream;
}

// vg_handle_is_own reports whether a stream is the calling thread's default stream. With
// `per_thread`, stream 0 is that stream.
static inline bool vg_handle_is_own(CUstream stream, bool per_thread)
{
	return stream == vg_per_thread_stream || (per_thread && !stream);
}

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
