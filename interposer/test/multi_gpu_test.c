// SPDX-License-Identifier: Apache-2.0

// This test covers two GPUs of a container, which are throttled together. All times are arguments.

#include <string.h>

#include "check.h"
#include "pages/bucket.h"
#include "pages/limits.h"
#include "time/multi_gpu.h"

enum { ms = 1000000, part = 300000 };

// fill refills a bucket without a lease.
static int64_t fill(struct vg_container_device *device, uint64_t now, uint32_t ppm, int64_t cap)
{
	return vg_bucket_fill(device, now, ppm, cap, (struct vg_lease){0});
}

static struct vg_usage_header header;
static uint64_t now;

static void set_up(void)
{
	memset(&header, 0, sizeof header);
	now = 1000 * (uint64_t)ms;
	for (int i = 0; i < 2; i++)
		fill(&header.devices[i], now, part, vg_bucket_idle_cap);
}

static void launch(uint32_t device, int64_t ns)
{
	vg_bucket_charge(&header.devices[device], ns);
	vg_multi_gpu_launch(&header, 2, UINT32_C(1) << device);
}

static struct vg_phase look(const uint32_t *ppm, uint32_t device)
{
	fill(&header.devices[device], now, ppm[device], vg_bucket_idle_cap);
	return vg_multi_gpu_look(&header, ppm, 2, device, now);
}

static bool passes(const uint32_t *ppm, uint32_t device)
{
	struct vg_phase phase = look(ppm, device);

	return phase.behind ||
	       (phase.wait == 0 && vg_bucket_peek(&header.devices[device], now, ppm[device]) >= 1);
}

// Work in step stays in step. After the admission of a kernel, its peer is admitted immediately,
// even in debt. No further work is admitted.
static void test_peers_go_together(void)
{
	static const uint32_t unequal[] = {part, 2 * part};

	set_up();
	for (int turn = 0; turn < 200; turn++) {
		uint32_t first = (uint32_t)turn % 2;

		for (int waited = 0; !passes(unequal, first); waited++) {
			CHECK(waited < 1000);
			now += 100000;
		}
		launch(first, 2 * ms);
		CHECK(passes(unequal, 1 - first));
		launch(1 - first, 2 * ms);
	}
	// The GPU gets 400 ms at 30 %, whatever allowance the other GPU has left.
	CHECK(now - 1000 * (uint64_t)ms > 1280 * (uint64_t)ms);
	CHECK(now - 1000 * (uint64_t)ms < 1400 * (uint64_t)ms);
	CHECK_EQUAL(header.phase_in_step, 1);
}

// A GPU that does not work in step gets its part, whatever the other GPU does.
static void test_others_have_their_parts(void)
{
	static const uint32_t unequal[] = {part, 2 * part};
	const int64_t size[] = {20 * ms, ms / 5};
	int64_t had[2] = {0, 0};

	set_up();
	for (int step = 0; step < 40000; step++, now += 50000) {
		for (uint32_t i = 0; i < 2; i++) {
			if (!passes(unequal, i))
				continue;
			launch(i, size[i]);
			had[i] += size[i];
		}
	}
	CHECK(had[0] > 590 * (int64_t)ms && had[0] < 630 * (int64_t)ms);
	CHECK(had[1] > 1180 * (int64_t)ms && had[1] < 1220 * (int64_t)ms);
}

// A rarely used or unlimited GPU does not delay the other GPU.
static void test_idle_ones_hold_nobody_back(void)
{
	static const uint32_t unlimited[] = {part, VG_PPM};
	static const uint32_t equal[] = {part, part};

	set_up();
	launch(0, 500 * ms);
	CHECK(!passes(equal, 0));
	CHECK(look(unlimited, 1).wait < 1700 * (uint64_t)ms);
	now += 8 * (uint64_t)ms;
	launch(1, ms / 5);
	CHECK(passes(equal, 1));
}

// No wait is longer than the time to pay off the deepest debt, with any values on the page.
static void test_forged_pages(void)
{
	static const uint32_t equal[] = {part, part};
	static const uint64_t values[] = {0, 1, INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX};

	for (size_t i = 0; i < 625; i++) {
		set_up();
		header.phase_open = values[i % 5];
		header.phase_reach = values[i / 5 % 5];
		header.devices[1].launches = values[i / 25 % 5];
		header.devices[1].bucket_ns = values[i / 125];
		look(equal, 0);
		launch(0, 100 * ms);
		CHECK(!passes(equal, 0));
	}
}

int main(void)
{
	test_peers_go_together();
	test_others_have_their_parts();
	test_idle_ones_hold_nobody_back();
	test_forged_pages();
	return 0;
}
