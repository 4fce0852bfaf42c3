// SPDX-License-Identifier: Apache-2.0

// This test covers the deductible time of other containers, which is at most their charges.

#include "time/others.h"

#include "check.h"

enum { ms = 1000000, late = vg_others_late_ns };

static struct vg_limits_page limits;
static struct vg_usage_page usage;
static const struct vg_pages pages = {.limits = &limits, .usage = &usage, .slot = 1};

// look records the agent's count at a time.
static void look(uint64_t at, uint64_t others, uint32_t ppm)
{
	limits.others[0] = others;
	limits.others_looks[0] = at >> VG_LEASE_UNIT_BITS << VG_LEASE_PPM_BITS | ppm;
}

static void test_deductions(void)
{
	static const struct {
		int64_t charged, want, part, left; // left: the charge's rest, for the next call
	} cases[] = {
		{0, 20 * ms, 0, 0},                                  // a lone tenant
		{5 * ms, 20 * ms, 5 * ms, 0},                        // more than the charges of the others
		{20 * ms, 5 * ms, 5 * ms, 15 * ms},                  // less
		{20 * ms, 0, 0, 20 * ms},                            // nothing
		{20 * ms, -1, 0, 20 * ms},                           //
		{1000 * (int64_t)ms, 5 * ms, 5 * ms, late},          // an old charge expires
		{-5 * ms, 5 * ms, 0, 0},                             // the agent counts less than before
		{INT64_MIN, INT64_MAX / 2, 0, 0},                    // a forged page
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint64_t deducted = UINT64_MAX - 2; // counters wrap around
		uint64_t charged = deducted + (uint64_t)cases[i].charged;

		CHECK_EQUAL(vg_others_deduct(&deducted, charged, cases[i].want), cases[i].part);
		CHECK_EQUAL((int64_t)(charged - deducted), cases[i].left);
	}
}

static void test_charged_by_others(void)
{
	look(1000 * (uint64_t)ms, 7 * ms, 500000);
	usage.header.devices[0].spent_ns = 30 * ms;
	usage.slots[1].devices[0].gpu_time_ns = 10 * ms;
	CHECK_EQUAL(vg_others_charged(&pages, 0, 1000 * (uint64_t)ms), 27 * ms);
	CHECK_EQUAL(vg_others_charged(&pages, 0, 1099 * (uint64_t)ms), 27 * ms);
	// While the agent is absent, the others may be charged half of the time.
	CHECK((int64_t)vg_others_charged(&pages, 0, 1300 * (uint64_t)ms) > 176 * ms);
	CHECK((int64_t)vg_others_charged(&pages, 0, 1300 * (uint64_t)ms) < 178 * ms);
	limits.others_looks[0] = 0; // no count exists
	CHECK_EQUAL(vg_others_charged(&pages, 0, 5000 * (uint64_t)ms), 27 * ms);
}

static void test_none(void)
{
	usage = (struct vg_usage_page){.header = {.high_water = 2}};
	look(0, 0, 0);
	CHECK(!vg_others_none(&pages, 0)); // no report exists
	look(1000 * (uint64_t)ms, 7 * ms, 0);
	CHECK(vg_others_none(&pages, 0));
	look(1000 * (uint64_t)ms, 7 * ms, 1);
	CHECK(!vg_others_none(&pages, 0));
	look(1000 * (uint64_t)ms, 7 * ms, 0);
	usage.slots[1].devices[0].context_bytes = 1; // another process of the same container
	CHECK(vg_others_none(&pages, 0));
	usage.slots[0].devices[0].context_bytes = 1;
	CHECK(!vg_others_none(&pages, 0));
	usage.header.high_water = UINT32_MAX; // forged
	usage.slots[0].devices[0].context_bytes = 0;
	CHECK(vg_others_none(&pages, 0));
}

int main(void)
{
	test_deductions();
	test_charged_by_others();
	test_none();
	return 0;
}
