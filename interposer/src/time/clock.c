// SPDX-License-Identifier: Apache-2.0

#include "clock.h"

#if defined __x86_64__
#include <cpuid.h>
#endif

enum {
	vg_clock_goes_ns = 100000,      // by the counter alone
	vg_clock_measure_ns = 10000000, // until the counter's rate is known
	vg_clock_at_once_ns = 2000,     // within which both are seen at once
	vg_clock_wrong_part = 64,       // of the time between two looks that the counter may be wrong by
};

static const double vg_clock_unit = 4294967296.0; // of the rate

// Where the kernel itself goes by the counter, it is the same on all processors; where not,
// and they differ, the clock is wrong by no more than vg_clock_goes_ns.
bool vg_counts_evenly(void)
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
	return vg_ticks() != 0;
#endif
}

// vg_clock_is_right says whether the counter has told the time since the last look.
static bool vg_clock_is_right(const struct vg_clock *clock, uint64_t ns, uint64_t ticks)
{
	uint64_t told = (uint64_t)((double)(ticks - clock->ticks) * (double)clock->rate / vg_clock_unit);
	uint64_t took = ns - clock->ns;
	uint64_t wrong = told > took ? told - took : took - told;

	return wrong <= took / vg_clock_wrong_part + vg_clock_at_once_ns;
}

static void vg_clock_set(struct vg_clock *clock, uint64_t ns, uint64_t ticks)
{
	if (!clock->first_ns || ticks <= clock->ticks || (clock->rate && !vg_clock_is_right(clock, ns, ticks)))
		*clock = (struct vg_clock){.first_ns = ns, .first_ticks = ticks};
	clock->ns = ns;
	clock->ticks = ticks;
	if (ns - clock->first_ns < vg_clock_measure_ns)
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

	if (!vg_counts_evenly())
		return before;
	ticks = vg_ticks();
	ns = vg_now();
	if (ns - before < vg_clock_at_once_ns) // …and the thread did not have to wait meanwhile
		vg_clock_set(clock, ns, ticks);
	return ns;
}
