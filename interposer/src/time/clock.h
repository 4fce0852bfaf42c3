// SPDX-License-Identifier: Apache-2.0

// A clock for what is done too often to ask the kernel's each time: between two looks at
// CLOCK_MONOTONIC it goes on by the processor's own counter, which is read in half the
// time. It is guarded by whoever has it.

#ifndef VG_CLOCK_H
#define VG_CLOCK_H

#include "base.h"

// vg_clock is right when empty.
struct vg_clock {
	uint64_t ns, ticks; // both clocks, when CLOCK_MONOTONIC was looked at last
	uint64_t rate;      // ns of a tick, times 2^32; 0: not yet known
	uint64_t most_ticks; // after which CLOCK_MONOTONIC is looked at again
	uint64_t first_ns, first_ticks; // since when the counter's rate is measured
};

// vg_clock_look is vg_now by CLOCK_MONOTONIC.
uint64_t vg_clock_look(struct vg_clock *clock);

// vg_counts_evenly says whether the processor's counter goes on at one rate whatever the
// processor does: where not, the clock is CLOCK_MONOTONIC each time.
bool vg_counts_evenly(void);

// vg_ticks is the processor's counter, 0 where none is known.
static inline uint64_t vg_ticks(void)
{
#if defined __x86_64__
	return __builtin_ia32_rdtsc();
#elif defined __aarch64__
	uint64_t ticks;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#else
	return 0;
#endif
}

// vg_clock_now is vg_now, give or take what the counter is wrong by: see clock.c.
static inline uint64_t vg_clock_now(struct vg_clock *clock)
{
	uint64_t ticks = vg_ticks() - clock->ticks;

	if (__builtin_expect(ticks >= clock->most_ticks, 0))
		return vg_clock_look(clock);
	return clock->ns + (ticks * clock->rate >> 32);
}

#endif
