// SPDX-License-Identifier: Apache-2.0

// This header covers the driver's real library, which the interposer opens when it needs the
// library's first function. real.c is compiled once for each replaced library (see the Makefile):
//   VG_LIBRARY        its SONAME
//   VG_SYMBOLS        the header generated from its table of symbols
//   VG_NO_LIBRARY     the result of its functions while the library cannot be found
//   VG_NO_FUNCTION    the result of a function that this driver does not have

#ifndef VG_REAL_H
#define VG_REAL_H

#include <stdatomic.h>
#include <stdint.h>

#include "spare.h"
#include VG_SYMBOLS

typedef int (*vg_function)(void);

// vg_real_functions has the real functions that have been looked up. The stubs jump through this
// table. The functions of spares follow the functions of the symbol table.
extern _Atomic(vg_function) vg_real_functions[VG_SYMBOL_COUNT + VG_SPARE_COUNT];

// vg_real_name returns the exported name with this index.
const char *vg_real_name(uint32_t index);

// vg_real_library opens the real library and returns its handle, or NULL.
void *vg_real_library(void);

// vg_real_lookup returns the real function with this index, or NULL if the library or the function
// does not exist. vg_real_lookup_hashed is vg_real_lookup for a name with this vg_text_hash.
vg_function vg_real_lookup(uint32_t index);
vg_function vg_real_lookup_hashed(uint32_t index, uint32_t hash);

// vg_real returns the real function with this index, and never NULL. For a missing function,
// vg_real returns a function that takes any arguments and returns an error.
vg_function vg_real(uint32_t index);

// vg_real_resolve returns the function that a stub calls. Stubs call vg_real_resolve at the first
// call of a function.
vg_function vg_real_resolve(uint32_t index);

#endif
