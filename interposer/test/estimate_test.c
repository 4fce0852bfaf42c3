// SPDX-License-Identifier: Apache-2.0

// This test covers estimates of the length of work, and of its variation. All times are arguments.

#include <string.h>

#include "check.h"
#include "time/estimate.h"

enum { ms = 1000000, start = 1000 * ms };

static struct vg_estimates estimates;

static void observe(struct vg_class *class, uint64_t ns, int times, uint64_t *now)
{
	for (int i = 0; i < times; i++)
		vg_estimate_observe(class, ns, 500, *now += 10 * ms);
}

static void test_estimate_keeps_to_the_least(void)
{
	struct vg_class *class = vg_estimate_of(&estimates, 7, 50000);
	uint64_t now = start;

	CHECK(!class->measured);
	CHECK_EQUAL(class->ns, 50000);
	observe(class, 400000, 1, &now);
	CHECK_EQUAL(class->ns, 400000);
	for (int i = 0; i < 300; i++) {
		observe(class, 1200000, 4, &now); // with another container's slice in between
		observe(class, 200000, 1, &now);
	}
	CHECK_EQUAL(class->ns, 200000);
	CHECK(vg_estimate_of(&estimates, 7, 1) == class);
}

static void test_estimate_follows_a_change(void)
{
	struct vg_class *class = vg_estimate_of(&estimates, 8, 50000);
	uint64_t now = start;

	observe(class, 200000, 100, &now);
	observe(class, 600000, 160, &now);
	CHECK_EQUAL(class->ns, 600000);
	observe(class, 100000, 1, &now);
	CHECK_EQUAL(class->ns, 100000);
	vg_estimate_forget(&estimates, 8);
	CHECK(!class->measured);
}

// The GPU's clock changes with power and temperature. In this test, work that is measured every 2
// ms takes longer for half a second.
static void test_estimate_follows_the_clock(void)
{
	struct vg_class *class = vg_estimate_of(&estimates, 13, 50000);
	uint64_t now = start;

	for (int i = 0; i < 500; i++)
		vg_estimate_observe(class, 200000, 500, now += 2 * ms);
	CHECK_EQUAL(class->ns, 200000);
	for (int i = 0; i < 17; i++)
		vg_estimate_observe(class, 260000, 500, now += 2 * ms);
	CHECK_EQUAL(class->ns, 260000);
}

// Beside other streams of the process, few observations measure the work alone.
static void test_estimate_waits_for_work_alone(void)
{
	struct vg_class *class = vg_estimate_of(&estimates, 14, 50000);
	uint64_t now = start;

	class->company = true;
	for (int i = 0; i < 500; i++)
		vg_estimate_observe(class, i % 40 ? 160000 : 20000, 500, now += ms);
	CHECK_EQUAL(class->ns, 20000);
}

static void test_estimate_is_a_mean_without_the_first(void)
{
	struct vg_class *class = vg_estimate_of(&estimates, 9, 50000);
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

// Probes err in both directions, so that the least of these observations is too small.
static void test_estimate_is_a_mean_of_rough_ones(void)
{
	struct vg_class *class = vg_estimate_of(&estimates, 10, 50000);
	uint64_t now = start;

	vg_estimate_observe_roughly(class, 1760000, 500, now);
	CHECK(class->measured);
	CHECK_EQUAL(class->ns, 1760000);
	for (int i = 0; i < 100; i++)
		vg_estimate_observe_roughly(class, i % 10 ? 2050000 : 1500000, 500,
					    now += 20 * ms);
	CHECK(class->ns > 1900000 && class->ns < 2060000);
	observe(class, 2000000, 20, &now);
	CHECK(class->ns > 1990000 && class->ns < 2010000);
}

// The measurement of short work is less accurate for single pieces than for runs.
static void test_estimate_keeps_to_the_finest(void)
{
	struct vg_class *class = vg_estimate_of(&estimates, 11, 50000);
	uint64_t now = start;

	vg_estimate_observe(class, 1500, 800, now += ms);
	CHECK_EQUAL(class->ns, 1500);
	vg_estimate_observe(class, 2000, 5, now += ms);
	CHECK_EQUAL(class->ns, 2000);
	for (int i = 0; i < 1000; i++) {
		vg_estimate_observe(class, 1500, 800, now += ms);
		vg_estimate_observe(class, 2700, 800, now += ms);
	}
	CHECK_EQUAL(class->ns, 2000);
	vg_estimate_observe(class, 900, 800, now += ms); // from now on the work is shorter
	CHECK_EQUAL(class->ns, 900);
	vg_estimate_observe(class, 1000, 5, now += ms);
	CHECK_EQUAL(class->ns, 1000);
	for (int i = 0; i < 1000; i++)
		vg_estimate_observe(class, 3000, 800, now += ms); // from now on the work is longer
	CHECK_EQUAL(class->ns, 3000);
	vg_estimate_observe(class, 6000, 5, now += ms); // with other containers' slices in between
	CHECK_EQUAL(class->ns, 3000);
}

static void test_more_classes_than_places(void)
{
	for (uint64_t key = 1; key < 5000; key++) {
		struct vg_class *class = vg_estimate_of(&estimates, key * 77, 3);

		CHECK_EQUAL(class->key, key * 77);
		CHECK(vg_estimate_of(&estimates, key * 77, 4) == class);
	}
}

enum { piece = 1000 }; // ns charged for each piece of work

// take observes `count` pieces that certainly take `more` than their charge.
static void take(struct vg_class *class, int count, int64_t more, uint64_t now)
{
	for (int i = 0; i < count; i++)
		vg_estimate_compare(class, piece, more, true, now);
}

static const uint64_t second = 1000 * ms;

// take_unsure observes `count` pieces that take `more` than their charge, perhaps for other containers'
// slices.
static void take_unsure(struct vg_class *class, int count, int64_t more, uint64_t now)
{
	for (int i = 0; i < count; i++)
		vg_estimate_compare(class, piece, more, false, now);
}

static void test_check(void)
{
	struct vg_class class = {.key = 1, .ns = piece, .measured = true};
	uint64_t now = second;

	// One piece that takes longer does not change the estimate.
	take_unsure(&class, 1, 100 * piece, now);
	CHECK(!vg_estimate_is_doubtful(&class, now));
	take_unsure(&class, 1, 100 * piece, now);
	take(&class, 1, 0, now + 99 * ms);
	CHECK(vg_estimate_is_known(&class, now + 99 * ms) && vg_estimate_is_doubtful(&class, now + 99 * ms));
	take(&class, 1, 0, now + 100 * ms);
	CHECK(!vg_estimate_is_doubtful(&class, now + 100 * ms));

	// Other containers' slices can cause excesses. Therefore each check without a finding
	// delays the next check.
	for (int i = 1; i < 6; i++) {
		uint64_t pause = (uint64_t)400 * ms << (i < 3 ? i : 3);

		take(&class, 1, 0, now + 100 * ms);
		take_unsure(&class, 2, 100 * piece, now + pause - ms);
		CHECK(!vg_estimate_is_doubtful(&class, now + pause - ms));
		now += pause;
		take_unsure(&class, 1, 0, now);
		CHECK(vg_estimate_is_doubtful(&class, now));
	}

	// The work itself takes longer repeatedly.
	take(&class, 1, 100 * piece, now);
	CHECK(vg_estimate_is_known(&class, now));
	take(&class, 1, 100 * piece, now);
	CHECK(!vg_estimate_is_known(&class, now) && vg_estimate_is_doubtful(&class, now + second));

	// While the work counts as varying, one observation suffices.
	take(&class, 1, 0, now + 9 * second);
	take(&class, 1, piece, now + 9 * second);
	CHECK(!vg_estimate_is_known(&class, now + 19 * second - 1));
	CHECK(vg_estimate_is_known(&class, now + 19 * second));
}

// A check goes on while the excess may be the work's own. Without probes, each excess may be the
// work's own.
static void test_check_without_proof(void)
{
	struct vg_class class = {.key = 1, .ns = piece, .measured = true};
	uint64_t now = second;

	take_unsure(&class, 2, 100 * piece, now);
	for (int i = 0; i < 100; i++) {
		take_unsure(&class, 6, 0, now += 50 * ms);
		take_unsure(&class, 1, 100 * piece, now);
		CHECK(vg_estimate_is_doubtful(&class, now));
	}
	take(&class, 100 * 16 * 100, 0, now);
	CHECK(!vg_estimate_is_doubtful(&class, now));
}

// If the clock slows down, the first pieces of the next sample show it. Neither a long time without
// an excess nor a recent check delays the finding.
static void test_slower_clock(void)
{
	struct vg_class class = {.key = 1, .ns = piece, .measured = true};

	take(&class, 100000, 0, second);
	take(&class, 1, piece, second);
	take(&class, 100, 0, second);
	CHECK(vg_estimate_is_known(&class, second));
	take(&class, 3, piece, second + 200 * ms);
	CHECK(!vg_estimate_is_known(&class, second + 200 * ms));
}

// A program that waits for a processor may wait long for a piece. If excesses are frequent, the
// work may be the cause.
static void test_waited_long(void)
{
	struct vg_class class = {.key = 1, .ns = piece, .measured = true};
	uint64_t now = second;

	for (int i = 0; i < 1000; i++)
		vg_estimate_waited(&class, piece, 500 * piece, now);
	vg_estimate_waited(&class, piece, 10000 * piece, now);
	CHECK(!vg_estimate_is_doubtful(&class, now));
	for (int i = 0; i < 1000; i++)
		vg_estimate_waited(&class, piece, i % 100 ? piece : 600 * piece, now);
	CHECK(vg_estimate_is_doubtful(&class, now));
}

// Work varies if its rare long pieces are a relevant part of its time. Work with one disturbed
// piece does not count as varying, whatever the position of that piece.
static void test_rare_long_pieces(void)
{
	struct vg_class disturbed = {.key = 1, .ns = piece, .measured = true};
	struct vg_class varying = {.key = 2, .ns = piece, .measured = true};
	struct vg_class hardly = {.key = 3, .ns = piece, .measured = true};

	take(&disturbed, 100, 0, second);
	take(&disturbed, 1, 1000 * piece, second);
	take(&disturbed, 100000, 0, second);
	CHECK(vg_estimate_is_known(&disturbed, second));
	for (int i = 0; i < 10; i++) {
		take(&varying, 1000, 0, second);
		take(&varying, 1, 200 * piece, second);
		take(&hardly, 1000, 0, second);
		take(&hardly, 1, 20 * piece, second);
	}
	CHECK(!vg_estimate_is_known(&varying, second));
	CHECK(vg_estimate_is_known(&hardly, second));
}

int main(void)
{
	test_estimate_keeps_to_the_least();
	test_estimate_follows_a_change();
	test_estimate_follows_the_clock();
	test_estimate_waits_for_work_alone();
	test_estimate_is_a_mean_without_the_first();
	test_estimate_is_a_mean_of_rough_ones();
	test_estimate_keeps_to_the_finest();
	test_more_classes_than_places();
	test_check();
	test_check_without_proof();
	test_slower_clock();
	test_waited_long();
	test_rare_long_pieces();
	return 0;
}
