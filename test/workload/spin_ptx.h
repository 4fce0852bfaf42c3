// SPDX-License-Identifier: Apache-2.0

// This header contains a kernel that keeps the GPU busy for `ns` nanoseconds of the kernel's time.
//
// The kernel adds up the advances of the global timer between successive readings, which are some
// ten nanoseconds apart while the kernel runs. A longer advance is another process's time slice, in
// which this kernel stood still, and counts as 5 µs at most. Therefore, the work is the same alone
// and beside other processes, as for a real kernel. The kernel ends even if the timer is coarse.

#ifndef WORKLOAD_SPIN_PTX_H
#define WORKLOAD_SPIN_PTX_H

// WL_SPIN_REGISTERS declares the registers of WL_SPIN, which runs on the GPU for %want ns.
#define WL_SPIN_REGISTERS \
	"	.reg .pred %again;\n" \
	"	.reg .u64 %want, %last, %now, %step, %spent;\n"
#define WL_SPIN \
	"	mov.u64 %last, %globaltimer;\n" \
	"	mov.u64 %spent, 0;\n" \
	"spinning:\n" \
	"	mov.u64 %now, %globaltimer;\n" \
	"	sub.u64 %step, %now, %last;\n" \
	"	mov.u64 %last, %now;\n" \
	"	min.u64 %step, %step, 5000;\n" \
	"	add.u64 %spent, %spent, %step;\n" \
	"	setp.lt.u64 %again, %spent, %want;\n" \
	"	@%again bra spinning;\n"

static const char wl_spin_ptx[] =
	".version 7.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry spin(.param .u64 ns)\n"
	"{\n"
	WL_SPIN_REGISTERS
	"	ld.param.u64 %want, [ns];\n"
	WL_SPIN
	"	ret;\n"
	"}\n"
	// trap spins like spin, and then ends with an exception.
	".visible .entry trap(.param .u64 ns)\n"
	"{\n"
	WL_SPIN_REGISTERS
	"	ld.param.u64 %want, [ns];\n"
	WL_SPIN
	"	trap;\n"
	"}\n"
	// exchange spins like spin, and then writes its turn to one place. exchange waits for the turn
	// at another place, which a kernel on another GPU writes.
	".visible .entry exchange(.param .u64 ns, .param .u64 mine,\n"
	"	.param .u64 theirs, .param .u64 turn)\n"
	"{\n"
	WL_SPIN_REGISTERS
	"	.reg .u64 %mine, %theirs, %turn, %seen;\n"
	"	ld.param.u64 %want, [ns];\n"
	"	ld.param.u64 %mine, [mine];\n"
	"	ld.param.u64 %theirs, [theirs];\n"
	"	ld.param.u64 %turn, [turn];\n"
	WL_SPIN
	"	membar.sys;\n"
	"	st.volatile.u64 [%mine], %turn;\n"
	"waiting:\n"
	"	ld.volatile.u64 %seen, [%theirs];\n"
	"	setp.lt.u64 %again, %seen, %turn;\n"
	"	@%again bra waiting;\n"
	"	ret;\n"
	"}\n";

#endif
