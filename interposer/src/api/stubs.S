// SPDX-License-Identifier: Apache-2.0
//
// This file defines the exported names of the driver. VG_STUBS is the list that gen/symbols.awk
// generates from the table in symbols/. A file for each architecture defines the macros and the
// functions dlopen and dlmopen.
//
// A forwarding stub jumps through vg_real_functions[index], which is in .bss and needs no
// relocation. While the entry is NULL, the stub calls vg_real_resolve(index). VG_SPARE is a
// forwarding stub for a name that the installer adds later: see spare.h.

#include "load/spare.h"

#if defined(__x86_64__)
#include "stubs_x86_64.inc"
#elif defined(__aarch64__)
#include "stubs_aarch64.inc"
#else
#error "stubs.S has no macros for this architecture"
#endif

	.macro VG_DATA name, bytes
	.section .bss.large, "aw", @nobits
	.balign 16
	.globl \name
	.type \name, @object
	.size \name, \bytes
\name:	.zero \bytes
	.text
	.endm

	// int32_t vg_own_distances[] has the distances of the interposer's functions from
	// vg_own_base, in the table's order.
	.section .rodata
	.balign 4
	.globl vg_own_distances
	.hidden vg_own_distances
	.type vg_own_distances, @object
vg_own_distances:
	.text
	.globl vg_own_base
	.hidden vg_own_base
vg_own_base:

#include VG_STUBS

	.set vg_next_spare, VG_SPARES
	.rept VG_SPARE_COUNT
	VG_SPARE
	.set vg_next_spare, vg_next_spare + 1
	.endr
	.section .vg.stubs
	.balign VG_SPARE_STUB

	.section .note.nri-vgpu, "a", @note
	.balign 4
	.long 9 // the name's length with its zero
	.long 4 // the content's length
	.long 1 // type: a library of this project
	.asciz "nri-vgpu"
	.balign 4
	.long 1

	.section .note.GNU-stack, "", @progbits
