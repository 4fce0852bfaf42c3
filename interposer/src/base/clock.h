// SPDX-License-Identifier: Apache-2.0

// This header declares a clock for frequent readings, because the kernel's clock is too slow.
// Between two readings of CLOCK_MONOTONIC the clock advances by the processor's counter. A reading
// of the counter takes half the time. The clock's owner must prevent concurrent use of the clock.

#ifndef VG_CLOCK_H
#define VG_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

// vg_clock needs no initialisation other than zeros.
struct vg_clock {
	uint64_t ns, ticks; // both clocks at the last reading of CLOCK_MONOTONIC
	uint64_t rate;      // ns per tick, times 2^32; 0: not yet known
	uint64_t most_ticks; // number of ticks after which CLOCK_MONOTONIC is read again
	uint64_t first_ns, first_ticks; // start of the measurement of the rate
};

// vg_clock_look returns the time of CLOCK_MONOTONIC and sets the clock to it.
uint64_t vg_clock_look(struct vg_clock *clock);

// vg_clock_counts_evenly reports whether the processor's counter has a constant rate in all states
// of the processor. If the rate is not constant, every reading uses CLOCK_MONOTONIC.
bool vg_clock_counts_evenly(void);

// vg_clock_ticks returns the processor's counter, or 0 on an architecture whose counter this code
// does not know.
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

// vg_clock_now returns the time of vg_now, with an error that clock.c bounds.
static inline uint64_t vg_clock_now(struct vg_clock *clock)
{
	uint64_t ticks = vg_clock_ticks() - clock->ticks;

	if (__builtin_expect(ticks >= clock->most_ticks, 0))
		return vg_clock_look(clock);
	return clock->ns + (ticks * clock->rate >> 32);
}

#endif
