// SPDX-License-Identifier: Apache-2.0

// What the driver does not tell of a handle of physical memory.

#ifndef VG_HANDLE_H
#define VG_HANDLE_H

#include "state.h"

// vg_handle_bytes finds the size of imported memory: it is as much as can be mapped of it. It
// returns `most` or more where the memory is larger than that, or does not let itself be
// measured, so that it fits no limit below.
uint64_t vg_handle_bytes(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *properties,
			 uint64_t most);

#endif
