// SPDX-License-Identifier: Apache-2.0
/*
 * This file contains the entries of a library's exported functions, one for each ENTRY line of the
 * file in GS_ENTRIES. The function itself has the name sim_impl_<name>.
 */
	.text

	/* r10 holds the function, and r11d holds the function's index. The code preserves all
	 * arguments. */
	.type	gs_call_slow, @function
gs_call_slow:
	push	%rbp
	mov	%rsp, %rbp
	push	%rdi
	push	%rsi
	push	%rdx
	push	%rcx
	push	%r8
	push	%r9
	push	%rax
	push	%r10
	sub	$128, %rsp
	movups	%xmm0, (%rsp)
	movups	%xmm1, 16(%rsp)
	movups	%xmm2, 32(%rsp)
	movups	%xmm3, 48(%rsp)
	movups	%xmm4, 64(%rsp)
	movups	%xmm5, 80(%rsp)
	movups	%xmm6, 96(%rsp)
	movups	%xmm7, 112(%rsp)
	mov	%r11d, %edi
	lea	8(%rbp), %rsi
	call	gs_call_begin@PLT
	mov	%eax, %r11d
	movups	(%rsp), %xmm0
	movups	16(%rsp), %xmm1
	movups	32(%rsp), %xmm2
	movups	48(%rsp), %xmm3
	movups	64(%rsp), %xmm4
	movups	80(%rsp), %xmm5
	movups	96(%rsp), %xmm6
	movups	112(%rsp), %xmm7
	add	$128, %rsp
	pop	%r10
	pop	%rax
	pop	%r9
	pop	%r8
	pop	%rcx
	pop	%rdx
	pop	%rsi
	pop	%rdi
	pop	%rbp
	test	%r11d, %r11d
	jne	1f
	jmp	*%r10
1:	mov	%r11d, %eax
	ret
	.size	gs_call_slow, . - gs_call_slow

	/* gs_call_return is the return address of functions whose calls have a cost. The code at
	 * gs_call_return returns to the caller. */
	.globl	gs_call_return
	.hidden	gs_call_return
	.type	gs_call_return, @function
gs_call_return:
	sub	$8, %rsp
	push	%rax
	push	%rdx
	sub	$24, %rsp
	movups	%xmm0, (%rsp)
	call	gs_call_end@PLT
	mov	%rax, 40(%rsp)
	movups	(%rsp), %xmm0
	add	$24, %rsp
	pop	%rdx
	pop	%rax
	ret
	.size	gs_call_return, . - gs_call_return

	/* gs_call_empty calls an empty function as the call whose index is the argument. */
	.globl	gs_call_empty
	.hidden	gs_call_empty
	.type	gs_call_empty, @function
gs_call_empty:
	lea	1f(%rip), %r10
	mov	%edi, %r11d
	jmp	gs_call_slow
1:	ret
	.size	gs_call_empty, . - gs_call_empty

	.macro	ENTRY name, index
	.globl	\name
	.type	\name, @function
	.p2align 4
\name:
	cmpb	$0, gs_calls_watched(%rip)
	jne	1f
	jmp	sim_impl_\name
1:	lea	sim_impl_\name(%rip), %r10
	mov	$\index, %r11d
	jmp	gs_call_slow
	.size	\name, . - \name
	.endm

#include GS_ENTRIES

	.section .note.GNU-stack, "", @progbits
