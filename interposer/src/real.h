// SPDX-License-Identifier: Apache-2.0

// The driver's real library, opened when its first function is needed. This is
// compiled once for each library that is stood in for (see the Makefile):
//   VG_LIBRARY        its SONAME
//   VG_SYMBOLS        the header made of its table of symbols
//   VG_NO_LIBRARY     what its functions return while it cannot be found
//   VG_NO_FUNCTION    what a function returns that this driver does not have

#ifndef VG_REAL_H
#define VG_REAL_H

#include <stdatomic.h>
#include <stdint.h>

#include "spare.h"
#include VG_SYMBOLS

typedef int (*vg_function)(void);

// The real functions as far as they were needed; the stubs jump through it.
// Those of the spares follow those of the table.
extern _Atomic(vg_function) vg_real_functions[VG_SYMBOL_COUNT + VG_SPARE_COUNT];

// vg_symbol_name is the exported name with this index.
const char *vg_symbol_name(uint32_t index);

// vg_real_library opens the real library and returns its handle, or NULL.
void *vg_real_library(void);

// vg_real_lookup is the real function with this index, or NULL where the real
// library, or this function in it, does not exist.
vg_function vg_real_lookup(uint32_t index);

// vg_real is the same, but never NULL: in place of what does not exist stands a
// function that takes any arguments and returns an error.
vg_function vg_real(uint32_t index);

// vg_stub_resolve is called by the stubs at the first call of a function.
vg_function vg_stub_resolve(uint32_t index);

#endif
