// SPDX-License-Identifier: Apache-2.0

#ifndef VG_PTX_H
#define VG_PTX_H

#include <stddef.h>
#include <stdint.h>

// vg_ptx_bytes returns the size of the variables that a PTX text of this length declares at module
// scope.
uint64_t vg_ptx_bytes(const char *text, size_t length);

#endif
