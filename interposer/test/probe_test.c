// SPDX-License-Identifier: Apache-2.0

// This test covers the time of other containers that probes measure. All times are arguments.

#include <string.h>

#include "check.h"
#include "time/probe.h"

enum { ms = 1000000 };

// Other containers have every second millisecond of the GPU. A probe starts every 250 µs and
// returns during this container's turn. The clocks differ by 7 ms, and the return takes 3 µs.
static void test_probes_find_the_slices_of_others(void)
{
	static struct vg_probe probe;
	const int64_t offset = 7 * ms + 3000;
	int64_t found;

	memset(&probe, 0, sizeof probe);
	probe.seen.held = probe.seen.since = probe.seen.until = INT64_MIN / 2;
	for (int64_t sent = 0; sent < 100 * ms; sent += 250000) {
		bool theirs = sent / ms % 2 == 1;
		int64_t back = theirs ? (sent / ms + 1) * ms : sent;

		vg_stretch_note(&probe.seen, sent, back + offset);
	}
	found = vg_stretch_overlap(&probe.seen, (struct vg_stretch){10 * ms + offset, 90 * ms + offset});
	CHECK(found > 36 * (int64_t)ms && found < 46 * (int64_t)ms);
	found = vg_stretch_own(&probe.seen, (struct vg_stretch){10 * ms + offset, 90 * ms + offset});
	CHECK(found > 25 * (int64_t)ms && found <= 40 * (int64_t)ms);
	CHECK_EQUAL(vg_stretch_own(&probe.seen, (struct vg_stretch){11 * ms + offset, 12 * ms + offset}), 0);
}

// Without a punctual probe, or after a pause between two probes, no time is certainly this process's.
static void test_own_time_needs_two_punctual_probes(void)
{
	static struct vg_probe probe;
	const struct vg_stretch all = {0, 10 * ms};

	vg_stretch_begin_anew(&probe.seen);
	CHECK_EQUAL(vg_stretch_own(&probe.seen, all), 0);
	for (int64_t sent = 0; sent < 2 * ms; sent += 250000)
		vg_stretch_note(&probe.seen, sent, 2 * ms);
	CHECK_EQUAL(vg_stretch_own(&probe.seen, all), 0);
	vg_stretch_note(&probe.seen, 3 * ms, 3 * ms);
	vg_stretch_note(&probe.seen, 4 * ms, 4 * ms);
	CHECK_EQUAL(vg_stretch_own(&probe.seen, all), 0);
	vg_stretch_note(&probe.seen, 4 * ms + 250000, 4 * ms + 250000);
	CHECK_EQUAL(vg_stretch_own(&probe.seen, all), 250000);
}

static void test_probes_alone(void)
{
	static struct vg_probe probe;

	memset(&probe, 0, sizeof probe);
	probe.seen.held = probe.seen.since = probe.seen.until = INT64_MIN / 2;
	for (int64_t sent = 0; sent < 100 * ms; sent += 250000)
		vg_stretch_note(&probe.seen, sent, sent + 5000 + sent % 7000);
	CHECK_EQUAL(vg_stretch_overlap(&probe.seen, (struct vg_stretch){0, 100 * ms}), 0);
}

// drift runs probes for four seconds on a GPU whose clock is faster than the host's. Other
// containers have every second slice. drift returns the measured percentage of other containers in
// the last second.
static int64_t drift(int64_t ppm, int64_t others_ns)
{
	static struct vg_probe probe;
	const int64_t second = 1000 * (int64_t)ms;

	memset(&probe, 0, sizeof probe);
	probe.seen.held = probe.seen.since = probe.seen.until = INT64_MIN / 2;
	for (int64_t sent = 0; sent < 4 * second; sent += 261000) {
		bool theirs = others_ns && sent / others_ns % 2 == 1;
		int64_t back = theirs ? (sent / others_ns + 1) * others_ns : sent;

		vg_stretch_note(&probe.seen, sent, back + back / 1000 * ppm / 1000 + 5000 + sent % 7000);
	}
	return vg_stretch_overlap(&probe.seen, (struct vg_stretch){3 * second, 4 * second}) / (second / 100);
}

static void test_probes_on_clocks_that_drift_apart(void)
{
	static const int64_t ppm[] = {-500, -100, -10, 0, 10, 50, 100, 400};

	for (size_t i = 0; i < sizeof ppm / sizeof *ppm; i++) {
		CHECK_EQUAL(drift(ppm[i], 0), 0);
		for (int64_t others = 1; others <= 30; others *= 30) {
			int64_t found = drift(ppm[i], others * ms);

			CHECK(found > 45 && found < 55);
		}
	}
}

int main(void)
{
	test_probes_find_the_slices_of_others();
	test_own_time_needs_two_punctual_probes();
	test_probes_alone();
	test_probes_on_clocks_that_drift_apart();
	return 0;
}
