// SPDX-License-Identifier: Apache-2.0

// This header covers the size of physical memory, which the driver does not report for a handle.

#ifndef VG_ALLOCATION_H
#define VG_ALLOCATION_H

#include "driver.h"

// vg_allocation_bytes returns the size of imported memory in bytes, which is the most that the
// driver maps. If the memory is larger than `most` bytes, or the size cannot be found,
// vg_allocation_bytes returns more than `most`. The caller's limit then refuses the memory.
uint64_t vg_allocation_bytes(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *properties,
			     uint64_t most);

#endif
