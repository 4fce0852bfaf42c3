// SPDX-License-Identifier: Apache-2.0

// What the driver does not tell of a handle of physical memory.

#ifndef VG_HANDLE_H
#define VG_HANDLE_H

#include "state.h"

// vg_handle_bytes returns the size of imported memory in bytes: the most that the driver maps
// of it. Where the memory is larger than `most` bytes, or its size cannot be found, it returns
// more than `most`, so that the caller's limit refuses it.
uint64_t vg_handle_bytes(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *properties,
			 uint64_t most);

#endif
