// SPDX-License-Identifier: Apache-2.0
//
// This file defines the exported names of the driver. VG_STUBS is the list that gen/symbols.awk
// generates from the table in symbols/. The code for another architecture must define the macros
// and functions inside the architecture's #if.
//
// A forwarding stub jumps through vg_real_functions[index], which is in .bss and needs no
// relocation. While the entry is NULL, the stub calls vg_real_resolve(index). VG_SPARE is a
// forwarding stub for a name that the installer adds later: see spare.h.

#include "load/spare.h"

#if defined(__x86_64__)

	.macro VG_FORWARD name, index
	.text
	.balign 16
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
	endbr64
	cmpq $0, vg_real_functions+8*\index(%rip)
	je 1f
	jmp *vg_real_functions+8*\index(%rip)
1:	pushq $\index
	.cfi_adjust_cfa_offset 8
	jmp vg_stub_first_call
	.cfi_endproc
	.size \name, . - \name
	.endm

	// Each spare stub assembles to less than VG_SPARE_STUB bytes.
	.macro VG_SPARE
	.section .vg.stubs, "ax", @progbits
	.balign VG_SPARE_STUB
	.cfi_startproc
	endbr64
	cmpq $0, vg_real_functions+8*vg_next_spare(%rip)
	je 1f
	jmp *vg_real_functions+8*vg_next_spare(%rip)
1:	pushq $vg_next_spare
	.cfi_adjust_cfa_offset 8
	jmp vg_stub_first_call
	.cfi_endproc
	.endm

	.macro VG_OWN name
	.text
	.balign 16
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
	endbr64
	jmp vg_\name
	.cfi_endproc
	.size \name, . - \name
	// VG_OWN stores the function's distance, because a pointer would cost every process a
	// relocation.
	.section .rodata
	.long \name - vg_own_base
	.text
	.endm

	// VG_SAVE_ARGUMENTS saves the registers in which a call may pass arguments. A call may pass six
	// integers, eight floating point values, and al, the number of floating point values.
	.macro VG_SAVE_ARGUMENTS
	subq $200, %rsp
	.cfi_adjust_cfa_offset 200
	movq %rdi, (%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	movq %rax, 48(%rsp)
	movq %r10, 56(%rsp)
	movups %xmm0, 64(%rsp)
	movups %xmm1, 80(%rsp)
	movups %xmm2, 96(%rsp)
	movups %xmm3, 112(%rsp)
	movups %xmm4, 128(%rsp)
	movups %xmm5, 144(%rsp)
	movups %xmm6, 160(%rsp)
	movups %xmm7, 176(%rsp)
	.endm

	.macro VG_RESTORE_ARGUMENTS
	movups 176(%rsp), %xmm7
	movups 160(%rsp), %xmm6
	movups 144(%rsp), %xmm5
	movups 128(%rsp), %xmm4
	movups 112(%rsp), %xmm3
	movups 96(%rsp), %xmm2
	movups 80(%rsp), %xmm1
	movups 64(%rsp), %xmm0
	movq 56(%rsp), %r10
	movq 48(%rsp), %rax
	movq 40(%rsp), %r9
	movq 32(%rsp), %r8
	movq 24(%rsp), %rcx
	movq 16(%rsp), %rdx
	movq 8(%rsp), %rsi
	movq (%rsp), %rdi
	addq $200, %rsp
	.cfi_adjust_cfa_offset -200
	.endm

	// On entry, (%rsp) is the index, and the return address is above the index. The stack is
	// aligned to 16 bytes, because the stub pushed 8 bytes. The 200 bytes below move the stack 8
	// bytes off that alignment, and the next 8 bytes restore the alignment.
	.text
	.balign 16
	.type vg_stub_first_call, @function
vg_stub_first_call:
	.cfi_startproc
	.cfi_def_cfa_offset 16
	VG_SAVE_ARGUMENTS
	movl 200(%rsp), %edi
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	call vg_real_resolve
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	movq %rax, %r11
	VG_RESTORE_ARGUMENTS
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	jmp *%r11
	.cfi_endproc
	.size vg_stub_first_call, . - vg_stub_first_call

#ifdef VG_HOOK_DLOPEN
	// void *dlopen(const char *name, int flags) ends with a jump to the next dlopen. The loader
	// therefore sees the program's caller, whose RUNPATH, $ORIGIN and namespace apply. dlopen
	// may replace the name.
	.globl dlopen
	.balign 16
	.type dlopen, @function
dlopen:
	.cfi_startproc
	endbr64
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	movq %rsp, %rsi
	addq $8, %rsi
	call vg_dlopen_target
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	jmp *%rax
	.cfi_endproc
	.size dlopen, . - dlopen

	// void *dlmopen(Lmid_t space, const char *name, int flags) ends with the same jump to the
	// next dlmopen.
	.globl dlmopen
	.balign 16
	.type dlmopen, @function
dlmopen:
	.cfi_startproc
	endbr64
	pushq %rdx
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	leaq 8(%rsp), %rdx
	call vg_dlopen_target_in
	popq %rdi
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdx
	.cfi_adjust_cfa_offset -8
	jmp *%rax
	.cfi_endproc
	.size dlmopen, . - dlmopen
#endif

#else
#error "stubs.S has no macros for this architecture yet"
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
