// SPDX-License-Identifier: Apache-2.0
/*
 * This file contains the entries of a library's exported functions, one for each ENTRY line of the
 * file in GS_ENTRIES. The function itself has the name sim_impl_<name>.
 */
#if defined(__x86_64__)
#include "entry_x86_64.inc"
#elif defined(__aarch64__)
#include "entry_aarch64.inc"
#else
#error "entry.S has no code for this architecture"
#endif

#include GS_ENTRIES

	.section .note.GNU-stack, "", @progbits
