// SPDX-License-Identifier: Apache-2.0
//
// This file reserves the room that the installer fills (spare.h). The file is in assembler, because
// a compiler could assume that constant data stays zero.

#include "spare.h"

	.section .vg.spares, "a", @progbits
	.globl vg_spares
	.hidden vg_spares
	.type vg_spares, @object
	.size vg_spares, VG_SPARE_COUNT * VG_SPARE_RECORD
vg_spares:
	.zero VG_SPARE_COUNT * VG_SPARE_RECORD

	.section .vg.tables, "a", @progbits
	.balign 16
	.zero VG_TABLES_SIZE

	.section .note.GNU-stack, "", @progbits
