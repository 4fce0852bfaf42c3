// SPDX-License-Identifier: Apache-2.0

// This test covers the clock that uses the processor's counter. The clock must return the kernel's
// time, seldom read the kernel's clock, and detect a change of the counter's rate.

#include "base/clock.h"

#include "base/now.h"
#include "check.h"

enum {
	ms = 1000000,
	seldom = 20000,  // ns between two reads of the kernel's clock, at least on average
	wrong = 5000,    // tolerated deviation in ns
	told = 200 * ms, // duration of a comparison
};

// compare compares the clock with the kernel's clock for a while. compare returns the number of
// reads of the kernel's clock.
static int compare(struct vg_clock *clock, uint64_t ns)
{
	uint64_t began = vg_now();
	uint64_t after = began;
	uint64_t looked = clock->ns;
	int looks = 0;

	while (after - began < ns) {
		uint64_t before = vg_now();
		uint64_t now = vg_clock_now(clock);

		after = vg_now();
		CHECK(now + wrong >= before && now <= after + wrong);
		looks += clock->ns != looked;
		looked = clock->ns;
	}
	return looks;
}

static void test_tells_the_time(struct vg_clock *clock)
{
	// The clock needs two uninterrupted readings to measure the counter's rate.
	for (int i = 0; i < 50 && vg_clock_counts_evenly() && !clock->rate; i++)
		compare(clock, 20 * ms);
	CHECK_EQUAL(clock->rate != 0, vg_clock_counts_evenly());
	CHECK(compare(clock, told) < told / seldom); // 0 if the kernel's clock is read each time
}

static void test_counter_that_jumps(struct vg_clock *clock)
{
	const uint64_t jumps[] = {UINT64_C(1) << 62, UINT64_C(1) << 40, -(UINT64_C(1) << 40)};

	for (size_t i = 0; i < sizeof jumps / sizeof *jumps; i++) {
		clock->ticks += jumps[i];
		compare(clock, 20 * ms);
	}
}

// The test simulates a counter that ran at half the rate until now. The clock must not use the old
// rate after the clock has detected the change.
static void test_counter_at_another_rate(struct vg_clock *clock)
{
	uint64_t until = vg_now() + ms;

	clock->first_ticks += (clock->ticks - clock->first_ticks) / 2;
	while (vg_now() < until)
		vg_clock_now(clock);
	compare(clock, 50 * ms);
}

int main(void)
{
	static struct vg_clock clock;

	test_tells_the_time(&clock);
	test_counter_that_jumps(&clock);
	test_counter_at_another_rate(&clock);
	test_tells_the_time(&clock);
	return 0;
}
