// SPDX-License-Identifier: Apache-2.0

// The pure parts of the compute limit: bucket, estimates, unions of time, and
// what probes tell. Clocks are arguments.

#include <string.h>

#include "time/bucket.h"
#include "check.h"
#include "time/estimate.h"
#include "time/meter.h"
#include "time/probe.h"

enum { ms = 1000000, start = 1000 * ms, half = VG_PPM / 2 };

// ---- bucket

static void test_bucket_earns_its_part(void)
{
	struct vg_container_device device = {0};
	uint64_t now = start;

	CHECK_EQUAL(vg_bucket_fill(&device, now, half, vg_bucket_idle_cap), vg_bucket_start);
	vg_bucket_charge(&device, 1000 * (int64_t)ms);
	for (int i = 0; i < 1000; i++)
		vg_bucket_fill(&device, now += ms, half, vg_bucket_idle_cap);
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_start - 500 * (int64_t)ms);
	CHECK_EQUAL(vg_bucket_delay(-4 * ms, 1 * ms, half), 10 * ms);
	CHECK_EQUAL(vg_bucket_delay(2 * ms, 1 * ms, half), 0);
}

static void test_bucket_caps(void)
{
	struct vg_container_device device = {0};
	uint64_t now = start;

	vg_bucket_fill(&device, now, half, vg_bucket_idle_cap);
	CHECK_EQUAL(vg_bucket_fill(&device, now += 900 * ms, half, vg_bucket_busy_cap), vg_bucket_busy_cap);
	// What was saved while others had the GPU is not lost at the next look.
	CHECK_EQUAL(vg_bucket_fill(&device, now += ms, half, vg_bucket_idle_cap), vg_bucket_busy_cap);
	vg_bucket_charge(&device, vg_bucket_busy_cap);
	CHECK_EQUAL(vg_bucket_fill(&device, now + 900 * ms, half, vg_bucket_idle_cap), vg_bucket_idle_cap);
}

// Work that is charged afterwards leaves the bucket as if it had been charged when it was
// launched, though that could not hold what was earned meanwhile; by several processes, too.
static void test_bucket_returns(void)
{
	const uint32_t most = 900000;
	struct vg_container_device device = {0};
	uint64_t now = start;

	vg_bucket_fill(&device, now, most, vg_bucket_idle_cap);
	for (int i = 0; i < 8; i++)
		vg_bucket_fill(&device, now += 10 * ms, most, vg_bucket_busy_cap);
	CHECK_EQUAL(device.bucket_ns, vg_bucket_busy_cap);
	CHECK_EQUAL(device.clipped_ns, vg_bucket_start + 72 * ms - vg_bucket_busy_cap);
	for (int i = 0; i < 4; i++) {
		vg_bucket_charge(&device, 20 * (int64_t)ms);
		vg_bucket_return(&device, 20 * (int64_t)ms, 0);
	}
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_start - 8 * (int64_t)ms);
	CHECK_EQUAL(device.clipped_ns, 0);
}

// A refill counts less time than the work may have taken.
static void test_bucket_returns_of_seconds(void)
{
	struct vg_container_device device = {0};

	vg_bucket_fill(&device, start, half, vg_bucket_idle_cap);
	vg_bucket_fill(&device, start + 4000 * (uint64_t)ms, half, vg_bucket_busy_cap);
	vg_bucket_charge(&device, 4000 * (int64_t)ms);
	vg_bucket_return(&device, 4000 * (int64_t)ms, 0);
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_start - 2000 * (int64_t)ms);
}

// What could not be held before the work was launched is lost, and the bucket holds no more
// for what comes back than otherwise.
static void test_bucket_returns_no_more(void)
{
	struct vg_container_device device = {0};
	uint64_t since;

	vg_bucket_fill(&device, start, half, vg_bucket_idle_cap);
	vg_bucket_fill(&device, start + 900 * ms, half, vg_bucket_idle_cap);
	since = device.clipped_ns;
	vg_bucket_charge(&device, 100 * (int64_t)ms);
	vg_bucket_return(&device, 100 * (int64_t)ms, since);
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_idle_cap - 100 * (int64_t)ms);
	vg_bucket_return(&device, -1, 0);
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_idle_cap - 100 * (int64_t)ms);
	vg_bucket_return(&device, 30 * (int64_t)ms, 0);
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_idle_cap - 70 * (int64_t)ms);
	vg_bucket_return(&device, 900 * (int64_t)ms, 0);
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_busy_cap);
	// Of time that was lent and not used, nothing comes back.
	since = device.clipped_ns;
	vg_bucket_fill_lent(&device, start + 910 * ms, 1, vg_bucket_idle_cap,
			    (struct vg_lease){VG_PPM, start + 2000 * (uint64_t)ms});
	CHECK(device.clipped_ns - since < ms);
}

static void test_bucket_of_a_forger(void)
{
	const uint64_t values[] = {0, 1, INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX, UINT64_C(1) << 62};

	for (size_t i = 0; i < 36; i++) {
		struct vg_container_device device = {.bucket_ns = values[i / 6],
						     .bucket_filled_ns = values[i % 6],
						     .clipped_ns = values[i % 5]};

		vg_bucket_fill(&device, start, half, vg_bucket_idle_cap);
		vg_bucket_charge(&device, ms);
		vg_bucket_return(&device, ms, values[i % 4]);
		CHECK(vg_bucket_fill(&device, start + 10 * ms, half, vg_bucket_idle_cap) <=
		      vg_bucket_busy_cap || device.bucket_filled_ns != start + 10 * ms);
	}
}

// A lease adds to the part, while it lasts, and is not saved up; it does not
// touch what was saved of the part itself.
static void test_bucket_uses_leases(void)
{
	struct vg_container_device device = {0};
	uint64_t now = start;
	struct vg_lease all = {VG_PPM, start + 30 * ms};

	vg_bucket_fill_lent(&device, now, half, vg_bucket_idle_cap, all);
	vg_bucket_charge(&device, vg_bucket_start + 50 * ms);
	CHECK_EQUAL(vg_bucket_fill_lent(&device, now += 10 * ms, half, vg_bucket_idle_cap, all), -40 * ms);
	// The lease ends after 20 of these 40 ms.
	CHECK_EQUAL(vg_bucket_fill_lent(&device, now += 40 * ms, half, vg_bucket_busy_cap, all), -10 * ms);
	vg_bucket_charge(&device, -10 * ms);
	all.until = now + 1000 * ms;
	CHECK_EQUAL(vg_bucket_fill_lent(&device, now += ms, half, vg_bucket_idle_cap, all), ms);
	for (int i = 0; i < 8; i++)
		vg_bucket_fill_lent(&device, now += ms, 1000, vg_bucket_idle_cap, all);
	CHECK(vg_bucket_fill(&device, now, half, vg_bucket_idle_cap) < vg_bucket_lent_cap + ms / 50);
	// A lease that is new is not owed for the time before it.
	vg_bucket_charge(&device, 500 * ms);
	CHECK(vg_bucket_fill_lent(&device, now += 200 * ms, half, vg_bucket_idle_cap, all) < -380 * ms);
}

static void test_rate_of_leases(void)
{
	struct vg_lease lease = {700000, start};

	CHECK_EQUAL(vg_bucket_rate(half, lease, start - 1), 700000);
	CHECK_EQUAL(vg_bucket_rate(half, lease, start), half);
	CHECK_EQUAL(vg_bucket_rate(800000, lease, start - 1), 800000);
}

// ---- estimates

static struct vg_estimates estimates;

static void observe(struct vg_class *class, uint64_t ns, int times, uint64_t *now)
{
	for (int i = 0; i < times; i++)
		vg_class_observe(class, ns, 500, *now += 10 * ms);
}

static void test_estimate_keeps_to_the_least(void)
{
	struct vg_class *class = vg_class_of(&estimates, 7, 50000);
	uint64_t now = start;

	CHECK(!class->measured);
	CHECK_EQUAL(class->ns, 50000);
	observe(class, 400000, 1, &now);
	CHECK_EQUAL(class->ns, 400000);
	for (int i = 0; i < 300; i++) {
		observe(class, 1200000, 4, &now); // another's slice in between
		observe(class, 200000, 1, &now);
	}
	CHECK_EQUAL(class->ns, 200000);
	CHECK(vg_class_of(&estimates, 7, 1) == class);
}

static void test_estimate_follows_a_change(void)
{
	struct vg_class *class = vg_class_of(&estimates, 8, 50000);
	uint64_t now = start;

	observe(class, 200000, 100, &now);
	observe(class, 600000, 160, &now);
	CHECK_EQUAL(class->ns, 600000);
	observe(class, 100000, 1, &now);
	CHECK_EQUAL(class->ns, 100000);
	vg_class_forget(&estimates, 8);
	CHECK(!class->measured);
}

// A first launch is slow: what was measured of it is not held against the others.
// The GPU's clock moves with power and temperature, for half a second here: work takes longer
// then, whose pieces were measured every 2 ms.
static void test_estimate_follows_the_clock(void)
{
	struct vg_class *class = vg_class_of(&estimates, 13, 50000);
	uint64_t now = start;

	for (int i = 0; i < 500; i++)
		vg_class_observe(class, 200000, 500, now += 2 * ms);
	CHECK_EQUAL(class->ns, 200000);
	for (int i = 0; i < 17; i++)
		vg_class_observe(class, 260000, 500, now += 2 * ms);
	CHECK_EQUAL(class->ns, 260000);
}

// Beside other streams of the process few observations are of the work alone.
static void test_estimate_waits_for_work_alone(void)
{
	struct vg_class *class = vg_class_of(&estimates, 14, 50000);
	uint64_t now = start;

	class->company = true;
	for (int i = 0; i < 500; i++)
		vg_class_observe(class, i % 40 ? 160000 : 20000, 500, now += ms);
	CHECK_EQUAL(class->ns, 20000);
}

static void test_estimate_is_a_mean_without_the_first(void)
{
	struct vg_class *class = vg_class_of(&estimates, 9, 50000);
	uint64_t now = start;

	observe(class, 20900, 1, &now);
	CHECK_EQUAL(class->ns, 20900);
	observe(class, 20000, 1, &now);
	CHECK_EQUAL(class->ns, 20000);
	observe(class, 20600, 1, &now);
	CHECK_EQUAL(class->ns, 20300);
	observe(class, 20400, 100, &now);
	CHECK(class->ns > 20390 && class->ns <= 20400);
}

// Probes err to either side: the least of such observations is too little.
static void test_estimate_is_a_mean_of_rough_ones(void)
{
	struct vg_class *class = vg_class_of(&estimates, 10, 50000);
	uint64_t now = start;

	vg_class_observe_roughly(class, 1760000, 500, now);
	CHECK(class->measured);
	CHECK_EQUAL(class->ns, 1760000);
	for (int i = 0; i < 100; i++)
		vg_class_observe_roughly(class, i % 10 ? 2050000 : 1500000, 500,
					 now += 20 * ms);
	CHECK(class->ns > 1900000 && class->ns < 2060000);
	observe(class, 2000000, 20, &now);
	CHECK(class->ns > 1990000 && class->ns < 2010000);
}

// Short work that is measured by itself is known less well than in runs.
static void test_estimate_keeps_to_the_finest(void)
{
	struct vg_class *class = vg_class_of(&estimates, 11, 50000);
	uint64_t now = start;

	vg_class_observe(class, 1500, 800, now += ms);
	CHECK_EQUAL(class->ns, 1500);
	vg_class_observe(class, 2000, 5, now += ms);
	CHECK_EQUAL(class->ns, 2000);
	for (int i = 0; i < 1000; i++) {
		vg_class_observe(class, 1500, 800, now += ms);
		vg_class_observe(class, 2700, 800, now += ms);
	}
	CHECK_EQUAL(class->ns, 2000);
	vg_class_observe(class, 900, 800, now += ms); // it is shorter now
	CHECK_EQUAL(class->ns, 900);
	vg_class_observe(class, 1000, 5, now += ms);
	CHECK_EQUAL(class->ns, 1000);
	for (int i = 0; i < 1000; i++)
		vg_class_observe(class, 3000, 800, now += ms); // …longer
	CHECK_EQUAL(class->ns, 3000);
	vg_class_observe(class, 6000, 5, now += ms); // others' slices in between
	CHECK_EQUAL(class->ns, 3000);
}

static void test_more_classes_than_places(void)
{
	for (uint64_t key = 1; key < 5000; key++) {
		struct vg_class *class = vg_class_of(&estimates, key * 77, 3);

		CHECK_EQUAL(class->key, key * 77);
		CHECK(vg_class_of(&estimates, key * 77, 4) == class);
	}
}

// ---- unions

static void test_cover_counts_time_once(void)
{
	struct vg_cover covers[vg_covers];
	uint32_t count = 0;

	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){10, 20}), 10);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){15, 25}), 5);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){40, 50}), 10);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){0, 60}), 35);
	CHECK_EQUAL(vg_cover_add(covers, &count, (struct vg_cover){0, 60}), 0);
	CHECK_EQUAL(count, 1);
	for (int i = 0; i < 1000; i++) {
		struct vg_cover next = {100 + i * 10, 105 + i * 10};

		CHECK_EQUAL(vg_cover_add(covers, &count, next), 5);
		CHECK(count <= vg_covers);
	}
}

// ---- probes

// Others have each second millisecond; probes go out every 250 µs and come back
// when it is ours. The clocks differ by 7 ms, the way back takes 3 µs.
static void test_probes_find_the_slices_of_others(void)
{
	static struct vg_probe probe;
	const int64_t offset = 7 * ms + 3000;
	int64_t found;

	memset(&probe, 0, sizeof probe);
	probe.held = probe.since = probe.until = INT64_MIN / 2;
	for (int64_t sent = 0; sent < 100 * ms; sent += 250000) {
		bool theirs = sent / ms % 2 == 1;
		int64_t back = theirs ? (sent / ms + 1) * ms : sent;

		vg_probe_note(&probe, sent, back + offset);
	}
	found = vg_probe_overlap(&probe, (struct vg_stretch){10 * ms + offset, 90 * ms + offset});
	CHECK(found > 36 * (int64_t)ms && found < 46 * (int64_t)ms);
}

static void test_probes_alone(void)
{
	static struct vg_probe probe;

	memset(&probe, 0, sizeof probe);
	probe.held = probe.since = probe.until = INT64_MIN / 2;
	for (int64_t sent = 0; sent < 100 * ms; sent += 250000)
		vg_probe_note(&probe, sent, sent + 5000 + sent % 7000);
	CHECK_EQUAL(vg_probe_overlap(&probe, (struct vg_stretch){0, 100 * ms}), 0);
}

// drift has probes go out for four seconds on a GPU whose clock goes faster than the host's,
// where others have each second of some time, and returns what part of the last second is taken
// for theirs, in per cent.
static int64_t drift(int64_t ppm, int64_t others_ns)
{
	static struct vg_probe probe;
	const int64_t second = 1000 * (int64_t)ms;

	memset(&probe, 0, sizeof probe);
	probe.held = probe.since = probe.until = INT64_MIN / 2;
	for (int64_t sent = 0; sent < 4 * second; sent += 261000) {
		bool theirs = others_ns && sent / others_ns % 2 == 1;
		int64_t back = theirs ? (sent / others_ns + 1) * others_ns : sent;

		vg_probe_note(&probe, sent, back + back / 1000 * ppm / 1000 + 5000 + sent % 7000);
	}
	return vg_probe_overlap(&probe, (struct vg_stretch){3 * second, 4 * second}) / (second / 100);
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

enum { piece = 1000 }; // ns that each piece of work is charged

// take has `count` pieces take more than they were charged, each `more`, for sure.
static void take(struct vg_class *class, int count, int64_t more, uint64_t now)
{
	for (int i = 0; i < count; i++)
		vg_class_compare(class, piece, more, true, now);
}

static const uint64_t second = 1000 * ms;

static void test_look(void)
{
	struct vg_class class = {.key = 1, .ns = piece, .measured = true};
	uint64_t now = second;

	// One piece that takes longer says nothing.
	vg_class_compare(&class, piece, 100 * piece, false, now);
	CHECK(!vg_class_is_doubtful(&class, now));
	vg_class_compare(&class, piece, 100 * piece, false, now);
	CHECK(vg_class_is_known(&class, now + 99 * ms) && vg_class_is_doubtful(&class, now + 99 * ms));
	CHECK(!vg_class_is_doubtful(&class, now + 100 * ms));

	// It was others' slices: each look that finds so makes the next come later.
	for (int i = 1; i < 6; i++) {
		uint64_t pause = (uint64_t)400 * ms << (i < 3 ? i : 3);

		take(&class, 100, 0, now);
		for (int k = 0; k < 2; k++)
			vg_class_compare(&class, piece, 100 * piece, false, now + pause - ms);
		CHECK(!vg_class_is_doubtful(&class, now + pause - ms));
		now += pause;
		vg_class_compare(&class, piece, 0, false, now);
		CHECK(vg_class_is_doubtful(&class, now));
	}

	// It was not, and not once only.
	take(&class, 1, 100 * piece, now);
	CHECK(vg_class_is_known(&class, now));
	take(&class, 1, 100 * piece, now);
	CHECK(!vg_class_is_known(&class, now) && vg_class_is_doubtful(&class, now + second));

	// As long as it is taken to vary, once is enough.
	take(&class, 1, 0, now + 9 * second);
	take(&class, 1, piece, now + 9 * second);
	CHECK(!vg_class_is_known(&class, now + 19 * second - 1));
	CHECK(vg_class_is_known(&class, now + 19 * second));
}

// A program may wait long for a piece as it has no processor. Where it does so often, it
// may be the work.
static void test_waited_long(void)
{
	struct vg_class class = {.key = 1, .ns = piece, .measured = true};
	uint64_t now = second;

	for (int i = 0; i < 1000; i++)
		vg_class_waited(&class, piece, 500 * piece, now);
	vg_class_waited(&class, piece, 10000 * piece, now);
	CHECK(!vg_class_is_doubtful(&class, now));
	for (int i = 0; i < 1000; i++)
		vg_class_waited(&class, piece, i % 100 ? piece : 600 * piece, now);
	CHECK(vg_class_is_doubtful(&class, now));
}

// Work varies whose rare long pieces are a part of what it takes, but not work of which
// one was disturbed, whenever that was.
static void test_rare_long_pieces(void)
{
	struct vg_class disturbed = {.key = 1, .ns = piece, .measured = true};
	struct vg_class varying = {.key = 2, .ns = piece, .measured = true};
	struct vg_class hardly = {.key = 3, .ns = piece, .measured = true};

	take(&disturbed, 100, 0, second);
	take(&disturbed, 1, 1000 * piece, second);
	take(&disturbed, 100000, 0, second);
	CHECK(vg_class_is_known(&disturbed, second));
	for (int i = 0; i < 10; i++) {
		take(&varying, 1000, 0, second);
		take(&varying, 1, 200 * piece, second);
		take(&hardly, 1000, 0, second);
		take(&hardly, 1, 20 * piece, second);
	}
	CHECK(!vg_class_is_known(&varying, second));
	CHECK(vg_class_is_known(&hardly, second));
}

// A sample counts by its least piece, and has nothing of one before it that was not completed.
static void test_estimate_of_samples(void)
{
	struct vg_class *class = vg_class_of(&estimates, 15, 50000);
	uint64_t now = 0;

	vg_class_observe(class, 50000, 500, now += ms);
	for (int i = 0; i < 8; i++) {
		vg_class_begin_sample(class, 2, now);
		class->to_see--;
		vg_class_observe_sample(class, 20000, 500, now += ms); // and no other
	}
	vg_class_begin_sample(class, 4, now);
	for (uint64_t i = 0; i < 4; i++) {
		class->to_see--;
		vg_class_observe_sample(class, 40000 + (3 - i) * 1000, 500, now += ms);
	}
	CHECK(class->lowest == 40000);
	CHECK(class->seen == 5);
}

int main(void)
{
	test_bucket_earns_its_part();
	test_bucket_caps();
	test_bucket_returns();
	test_bucket_returns_of_seconds();
	test_bucket_returns_no_more();
	test_bucket_of_a_forger();
	test_bucket_uses_leases();
	test_rate_of_leases();
	test_estimate_keeps_to_the_least();
	test_estimate_follows_a_change();
	test_estimate_follows_the_clock();
	test_estimate_waits_for_work_alone();
	test_estimate_is_a_mean_without_the_first();
	test_estimate_is_a_mean_of_rough_ones();
	test_estimate_keeps_to_the_finest();
	test_estimate_of_samples();
	test_more_classes_than_places();
	test_cover_counts_time_once();
	test_probes_find_the_slices_of_others();
	test_probes_alone();
	test_probes_on_clocks_that_drift_apart();
	test_look();
	test_waited_long();
	test_rare_long_pieces();
	return 0;
}
