// SPDX-License-Identifier: Apache-2.0

// This test covers the interposer's reports to the agent about probes. The reports contain the
// clock's drift, the length of a turn, and the number of rejected probes. All times are arguments.

#include "time/distrust.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pages/pages.h"
#include "time/meter.h"
#include "time/stretch.h"

enum { ms = 1000000 };

static const struct vg_limits_page limits;
static struct vg_usage_page usage;
static const struct vg_pages pages = {.limits = &limits, .usage = &usage};

// follow returns the state after two seconds on a card with this drift and these slices. With slices,
// every second slice belongs to other containers. With `pause`, no probe runs for half a second.
static const struct vg_stretches *follow(int64_t ppm, int64_t slice, bool pause)
{
	static struct vg_stretches seen;

	memset(&seen, 0, sizeof seen);
	vg_stretch_begin_anew(&seen);
	for (int64_t sent = 0; sent < 2000 * (int64_t)ms; sent += 261000) {
		bool theirs = slice && sent / slice % 2 == 1;
		int64_t back = theirs ? (sent / slice + 1) * slice : sent;

		if (pause && sent > 800 * (int64_t)ms && sent < 1300 * (int64_t)ms)
			continue;
		vg_stretch_note(&seen, sent, back + back / 1000 * ppm / 1000 + 5000 + sent % 7000);
	}
	return &seen;
}

static void test_drift_and_slices(void)
{
	static const int64_t ppms[] = {-500, -100, 0, 50, 400};
	static const int64_t slices[] = {0, ms, 2 * ms, 10 * ms, 30 * ms};

	for (size_t i = 0; i < sizeof ppms / sizeof *ppms; i++)
		for (size_t k = 0; k < sizeof slices / sizeof *slices; k++)
			for (int pause = 0; pause < 2; pause++) {
				const struct vg_stretches *seen = follow(ppms[i], slices[k], pause);

				CHECK(seen->drift_ppb); // 0 means unknown, and is not a drift
				CHECK(llabs(seen->drift_ppb - ppms[i] * 1000) < 10000);
				CHECK(llabs((int64_t)seen->slice_ns - slices[k]) <= vg_probe_ns);
			}
	CHECK(!follow(2000, 0, false)->drift_ppb); // no real clock drifts that much
}

// A probe that returns with the end of earlier work was queued behind that work.
static void test_aliases(void)
{
	static struct vg_stretches seen;
	static const struct {
		int64_t sent, back;
		enum vg_pass pass;
	} cases[] = {
		{1 * ms, 5 * ms, vg_pass_unknown},          // sent before the work
		{3 * ms, 20 * ms + 1000, vg_pass_unknown},  // possibly sent just before the end
		{5 * ms, 23 * ms, vg_pass_unknown},         // waited for other work
		{6 * ms, 20 * ms + 2000, vg_pass_aliased},  // waited for the end, like the second probe
		{4 * ms, 4 * ms + 5000, vg_passed},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		seen.journeys[seen.journey_count++] = (struct vg_journey){cases[i].sent, cases[i].back};
		CHECK(vg_stretch_pass(&seen, 2 * ms, 20 * ms) == cases[i].pass);
	}
}

static void test_lapsed_claims(void)
{
	static struct vg_meter meter = {.pages = &pages, .device = 3};

	vg_distrust_lapsed(&meter, 0);
	vg_distrust_lapsed(&meter, -1);
	CHECK_EQUAL(usage.header.distrust[3].uncharged, 0);
	usage.header.distrust[3].uncharged = UINT32_MAX - 1; // the tenant may write the value
	vg_distrust_lapsed(&meter, ms);
	vg_distrust_lapsed(&meter, ms);
	CHECK_EQUAL(usage.header.distrust[3].uncharged, 0);
	CHECK_EQUAL(usage.header.distrust[2].uncharged, 0);
}

int main(void)
{
	test_drift_and_slices();
	test_aliases();
	test_lapsed_claims();
	return 0;
}
