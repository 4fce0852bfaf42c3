// SPDX-License-Identifier: Apache-2.0

// This header declares a clock for frequent readings. The kernel's clock would cost too much.
// Between two readings of CLOCK_MONOTONIC the clock advances by the processor's counter, which
// takes half the time to read. The clock's owner guards the clock.

#ifndef VG_CLOCK_H
#define VG_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

// vg_clock is ready for use when zero.
struct vg_clock {
	uint64_t ns, ticks; // both clocks at the last reading of CLOCK_MONOTONIC
	uint64_t rate;      // ns of a tick, times 2^32; 0: not yet known
	uint64_t most_ticks; // after so many ticks CLOCK_MONOTONIC is read again
	uint64_t first_ns, first_ticks; // start of the measurement of the rate
};

// vg_clock_look returns the time of CLOCK_MONOTONIC and sets the clock to it.
uint64_t vg_clock_look(struct vg_clock *clock);

// vg_clock_counts_evenly reports whether the processor's counter has a constant rate, whatever the
// processor does. If not, every reading uses CLOCK_MONOTONIC.
bool vg_clock_counts_evenly(void);

// vg_clock_ticks returns the processor's counter; 0: the architecture has none that is known here.
static inline uint64_t vg_clock_ticks(void)
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

// vg_clock_now returns vg_now with the error of the counter: see clock.c.
static inline uint64_t vg_clock_now(struct vg_clock *clock)
{
	uint64_t ticks = vg_clock_ticks() - clock->ticks;

	if (__builtin_expect(ticks >= clock->most_ticks, 0))
		return vg_clock_look(clock);
	return clock->ns + (ticks * clock->rate >> 32);
}

#endif
