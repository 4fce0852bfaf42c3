// SPDX-License-Identifier: Apache-2.0

#include "clock.h"

#include "now.h"

#if defined __x86_64__
#include <cpuid.h>
#include <stdatomic.h>
#endif

enum {
	vg_clock_goes_ns = 100000,      // longest time by the counter alone
	vg_clock_measure_ns = 10000000, // time until the counter's rate is known
	vg_clock_at_once_ns = 2000,     // two readings within this time count as simultaneous
	// The counter may be wrong by 1/64 of the time between two readings of CLOCK_MONOTONIC.
	vg_clock_wrong_part = 64,
};

static const double vg_clock_unit = 4294967296.0; // scale of the rate

// vg_clock_counts_evenly checks only the rate of the counter. A counter that the kernel itself uses
// has the same value on all processors. If the values differ, the clock's error is at most
// vg_clock_goes_ns.
bool vg_clock_counts_evenly(void)
{
#if defined __x86_64__
	enum { unknown, yes, no };
	static _Atomic int known;
	int does = atomic_load_explicit(&known, memory_order_relaxed);
	unsigned a, b, c, d = 0;

	if (does == unknown) {
		does = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8) ? yes : no;
		atomic_store_explicit(&known, does, memory_order_relaxed);
	}
	return does == yes;
#else
	return vg_clock_ticks() != 0;
#endif
}

// vg_clock_is_right reports whether the counter has matched CLOCK_MONOTONIC since its last reading.
static bool vg_clock_is_right(const struct vg_clock *clock, uint64_t ns, uint64_t ticks)
{
	uint64_t told = (uint64_t)((double)(ticks - clock->ticks) * (double)clock->rate / vg_clock_unit);
	uint64_t took = ns - clock->ns;
	uint64_t wrong = told > took ? told - took : took - told;

	return wrong <= took / vg_clock_wrong_part + vg_clock_at_once_ns;
}

static void vg_clock_set(struct vg_clock *clock, uint64_t ns, uint64_t ticks)
{
	// Two readings may fall within one tick of the counter.
	if (!clock->first_ns || ticks < clock->ticks || (clock->rate && !vg_clock_is_right(clock, ns, ticks)))
		*clock = (struct vg_clock){.first_ns = ns, .first_ticks = ticks};
	clock->ns = ns;
	clock->ticks = ticks;
	if (ns - clock->first_ns < vg_clock_measure_ns || ticks == clock->first_ticks)
		return;
	clock->rate = (uint64_t)((double)(ns - clock->first_ns) * vg_clock_unit /
				 (double)(ticks - clock->first_ticks));
	clock->most_ticks = clock->rate ? ((uint64_t)vg_clock_goes_ns << 32) / clock->rate : 0;
}

uint64_t vg_clock_look(struct vg_clock *clock)
{
	uint64_t before = vg_now();
	uint64_t ticks;
	uint64_t ns;

	if (!vg_clock_counts_evenly())
		return before;
	ticks = vg_clock_ticks();
	ns = vg_now();
	// If the time between the readings of CLOCK_MONOTONIC is short, the thread was not interrupted.
	if (ns - before < vg_clock_at_once_ns)
		vg_clock_set(clock, ns, ticks);
	return ns;
}
