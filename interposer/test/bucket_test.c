// SPDX-License-Identifier: Apache-2.0

// This test covers the bucket of GPU time. All times are arguments. vg_bucket_fill reads the clock
// only if an argument is more than a second before the last refill.

#include <pthread.h>
#include <string.h>

#include "base/now.h"
#include "check.h"
#include "pages/bucket.h"
#include "pages/limits.h"

enum { ms = 1000000, start = 1000 * ms, half = VG_PPM / 2 };

// fill refills a bucket without a lease.
static int64_t fill(struct vg_container_device *device, uint64_t now, uint32_t ppm, int64_t cap)
{
	return vg_bucket_fill(device, now, ppm, cap, (struct vg_lease){0});
}

static void test_bucket_earns_its_part(void)
{
	struct vg_container_device device = {0};
	uint64_t now = start;

	CHECK_EQUAL(fill(&device, now, half, vg_bucket_idle_cap), vg_bucket_idle_cap);
	vg_bucket_charge(&device, 1000 * (int64_t)ms);
	for (int i = 0; i < 1000; i++)
		fill(&device, now += ms, half, vg_bucket_idle_cap);
	CHECK_EQUAL((int64_t)device.bucket_ns, vg_bucket_idle_cap - 500 * (int64_t)ms);
	CHECK_EQUAL(vg_bucket_delay(-4 * ms, 1 * ms, half), 10 * ms);
	CHECK_EQUAL(vg_bucket_delay(2 * ms, 1 * ms, half), 0);
}

static void test_bucket_caps(void)
{
	struct vg_container_device device = {0};
	uint64_t now = start;

	fill(&device, now, half, vg_bucket_idle_cap);
	CHECK_EQUAL(fill(&device, now += 900 * ms, half, vg_bucket_busy_cap), vg_bucket_busy_cap);
	// Time saved while other containers had the GPU remains at the next refill.
	CHECK_EQUAL(fill(&device, now += ms, half, vg_bucket_idle_cap), vg_bucket_busy_cap);
	vg_bucket_charge(&device, vg_bucket_busy_cap);
	CHECK_EQUAL(fill(&device, now + 900 * ms, half, vg_bucket_idle_cap), vg_bucket_idle_cap);
}

static void test_bucket_of_a_forger(void)
{
	const uint64_t values[] = {0, 1, INT64_MAX, (uint64_t)INT64_MIN, UINT64_MAX, UINT64_C(1) << 62};

	for (size_t i = 0; i < 36; i++) {
		struct vg_container_device device = {.bucket_ns = values[i / 6],
						     .bucket_filled_ns = values[i % 6]};

		fill(&device, start, half, vg_bucket_idle_cap);
		vg_bucket_charge(&device, ms);
		CHECK(fill(&device, start + 10 * ms, half, vg_bucket_idle_cap) <=
		      vg_bucket_busy_cap || device.bucket_filled_ns != start + 10 * ms);
	}
}

// A lease adds to the container's part while the lease lasts, and is not saved. The lease does not
// change the saved time of the container's part.
static void test_bucket_uses_leases(void)
{
	struct vg_container_device device = {0};
	uint64_t now = start;
	struct vg_lease all = {VG_PPM, start + 30 * ms};

	vg_bucket_fill(&device, now, half, vg_bucket_idle_cap, all);
	vg_bucket_charge(&device, vg_bucket_idle_cap + 50 * ms);
	CHECK_EQUAL(vg_bucket_fill(&device, now += 10 * ms, half, vg_bucket_idle_cap, all), -40 * ms);
	// The lease ends after 20 of these 40 ms.
	CHECK_EQUAL(vg_bucket_fill(&device, now += 40 * ms, half, vg_bucket_busy_cap, all), -10 * ms);
	vg_bucket_charge(&device, -10 * ms);
	all.until = now + 1000 * ms;
	CHECK_EQUAL(vg_bucket_fill(&device, now += ms, half, vg_bucket_idle_cap, all), ms);
	for (int i = 0; i < 8; i++)
		vg_bucket_fill(&device, now += ms, 1000, vg_bucket_idle_cap, all);
	CHECK(fill(&device, now, half, vg_bucket_idle_cap) < vg_bucket_lent_cap + ms / 50);
	// A new lease does not cover the time before the lease.
	vg_bucket_charge(&device, 500 * ms);
	CHECK(vg_bucket_fill(&device, now += 200 * ms, half, vg_bucket_idle_cap, all) < -380 * ms);
}

// After a pause in refills, a new lease covers at most 20 ms of the pause.
static void test_bucket_bounds_leases(void)
{
	struct vg_lease all = {VG_PPM, start + 1000 * ms};
	struct vg_container_device device = {.bucket_ns = (uint64_t)(-500 * (int64_t)ms), .bucket_filled_ns = start};

	CHECK_EQUAL(vg_bucket_fill(&device, start + 200 * ms, 0, vg_bucket_idle_cap, all), -480 * (int64_t)ms);
}

// A lease that ended before or at the last refill adds nothing.
static void test_bucket_ignores_ended_leases(void)
{
	const uint64_t ends[] = {start, start - 1, start - ms, 1, 0};

	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		struct vg_container_device device = {.bucket_ns = (uint64_t)(-500 * (int64_t)ms), .bucket_filled_ns = start};

		CHECK_EQUAL(vg_bucket_fill(&device, start + 200 * ms, 0, vg_bucket_idle_cap,
					   (struct vg_lease){VG_PPM, ends[i]}), -500 * (int64_t)ms);
	}
}

// vg_bucket_peek returns the balance after a refill, and does not change the bucket.
static void test_peek(void)
{
	const struct {
		int64_t balance;
		int64_t since; // of the last refill
		int64_t want;
	} cases[] = {
		{-100 * ms, 10 * ms, -95 * ms},
		{-1000 * ms, 4000 * (int64_t)ms, -500 * ms}, // of a longer pause, a second counts
		{7 * ms, 1 * ms, 7 * ms + ms / 2},
		{7 * ms, 10 * ms, vg_bucket_idle_cap},
		{vg_bucket_idle_cap, 10 * ms, vg_bucket_idle_cap},
		{30 * ms, 10 * ms, 30 * ms},                // saved while other containers had the GPU
		{100 * ms, 10 * ms, vg_bucket_busy_cap},    // forged
		{INT64_MIN, 10 * ms, -(INT64_C(1) << 50) + 5 * ms},
		{-1, 0, -1},
		{-5 * ms, -10 * ms, -5 * ms},               // another thread's clock is ahead
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct vg_container_device device = {
			.bucket_ns = (uint64_t)cases[i].balance,
			.bucket_filled_ns = (uint64_t)(10000 * (int64_t)ms - cases[i].since),
		};

		CHECK_EQUAL(vg_bucket_peek(&device, 10000 * (uint64_t)ms, half), cases[i].want);
	}
	CHECK_EQUAL(vg_bucket_peek(&(struct vg_container_device){.bucket_ns = 5}, start, half), vg_bucket_idle_cap);
	// A second counts, to the nanosecond.
	CHECK_EQUAL(vg_bucket_peek(&(struct vg_container_device){.bucket_ns = (uint64_t)(-2000 * (int64_t)ms)},
				   4000 * (uint64_t)ms, VG_PPM), -1000 * (int64_t)ms);
	// No time is earned before the last refill, at any rate.
	CHECK_EQUAL(vg_bucket_peek(&(struct vg_container_device){.bucket_ns = 5, .bucket_filled_ns = start + 1}, start,
				   VG_PPM), 5);
}

// Refills less than 5 us apart count as one.
static void test_bucket_refills_in_steps(void)
{
	struct vg_container_device device = {.bucket_filled_ns = start};

	CHECK_EQUAL(fill(&device, start + 4999, half, vg_bucket_idle_cap), 0);
	CHECK_EQUAL(device.bucket_filled_ns, start);
	CHECK_EQUAL(fill(&device, start + 5000, half, vg_bucket_idle_cap), 2500);
	CHECK_EQUAL(device.bucket_filled_ns, start + 5000);
}

// The time of the last refill may be later than now, if another thread has refilled, but by at most
// a second. A forged later time must not stop refills.
static void test_bucket_refilled_later(void)
{
	const uint64_t now = vg_now(), second = 1000 * ms, later = 3600 * second;
	struct vg_container_device device = {.bucket_ns = 7, .bucket_filled_ns = now + second};

	CHECK_EQUAL(fill(&device, now, half, vg_bucket_idle_cap), 7);
	CHECK_EQUAL(device.bucket_filled_ns, now + second);
	device.bucket_filled_ns = now + later;
	CHECK_EQUAL(fill(&device, now, half, vg_bucket_idle_cap), 7 + 2500);
	CHECK(device.bucket_filled_ns >= now && device.bucket_filled_ns < now + later / 2);
}

// A thread may be stopped between its reading of the clock and its refill. If other threads refill
// the bucket meanwhile, the stopped thread adds nothing, and no later refill adds this time again.
static void test_bucket_of_a_stopped_thread(void)
{
	const int64_t debt = -100000 * (int64_t)ms;
	const uint64_t now = vg_now(), stopped = now - 10000 * (uint64_t)ms;
	struct vg_container_device device = {.bucket_ns = (uint64_t)debt, .bucket_filled_ns = now};
	int64_t earned;

	fill(&device, stopped, half, vg_bucket_idle_cap);
	CHECK(device.bucket_filled_ns >= now);
	earned = (int64_t)(device.bucket_filled_ns - now) / 2;
	CHECK((int64_t)device.bucket_ns - debt <= earned);
	fill(&device, now + 10 * ms, half, vg_bucket_idle_cap);
	earned = (int64_t)(device.bucket_filled_ns - now) / 2;
	CHECK((int64_t)device.bucket_ns - debt <= earned);
}

// All calls of a round together take less than the second by which a refill may be late.
enum { rounds = 50, calls = 90000, step = 5000 };

static struct vg_container_device shared;
static uint64_t shared_now;

static void *refill_shared(void *highest)
{
	int64_t *most = highest;

	*most = INT64_MIN;
	for (int i = 0; i < calls; i++) {
		uint64_t now = __atomic_add_fetch(&shared_now, step, __ATOMIC_SEQ_CST);
		int64_t balance = fill(&shared, now, half, vg_bucket_idle_cap);

		*most = balance > *most ? balance : *most;
	}
	return NULL;
}

// Threads that refill a bucket in debt together earn each period once, and see the debt.
static void test_bucket_refilled_by_threads(void)
{
	const int64_t debt = -1000 * (int64_t)ms;
	int64_t most[2], earned;
	pthread_t other;

	for (int i = 0; i < rounds; i++) {
		shared = (struct vg_container_device){.bucket_ns = (uint64_t)debt, .bucket_filled_ns = start};
		shared_now = start;
		CHECK(pthread_create(&other, NULL, refill_shared, &most[0]) == 0);
		refill_shared(&most[1]);
		CHECK(pthread_join(other, NULL) == 0);
		earned = (int64_t)(shared.bucket_filled_ns - start) / 2;
		CHECK_EQUAL((int64_t)shared.bucket_ns, debt + earned);
		CHECK(most[0] <= debt + earned && most[1] <= debt + earned);
	}
}

// A forged balance is bounded.
static void test_bucket_caps_forged_balances(void)
{
	struct vg_container_device device = {.bucket_ns = 100 * ms, .bucket_filled_ns = start};

	CHECK_EQUAL(fill(&device, start + 10 * ms, half, vg_bucket_idle_cap), vg_bucket_busy_cap);
}

static void test_bucket_is_bounded(void)
{
	const int64_t deepest = INT64_C(1) << 50;
	struct vg_container_device device = {.bucket_ns = (uint64_t)INT64_MIN, .bucket_filled_ns = start};

	CHECK_EQUAL(fill(&device, start, half, vg_bucket_idle_cap), -deepest);
	device.bucket_ns = INT64_MAX;
	CHECK_EQUAL(fill(&device, start, half, vg_bucket_idle_cap), deepest);
}

static void test_bucket_counts_what_is_spent(void)
{
	struct vg_container_device device = {.bucket_ns = 10, .spent_ns = 100};

	vg_bucket_charge(&device, 30);
	CHECK_EQUAL((int64_t)device.bucket_ns, -20);
	CHECK_EQUAL(device.spent_ns, 130);
	vg_bucket_charge(&device, -5);
	CHECK_EQUAL((int64_t)device.bucket_ns, -15);
	CHECK_EQUAL(device.spent_ns, 125);
}

static void test_delay(void)
{
	CHECK_EQUAL(vg_bucket_delay(5, 5, half), 0);
	CHECK_EQUAL(vg_bucket_delay(4, 5, VG_PPM), 1);
	CHECK_EQUAL(vg_bucket_delay(0, 100 * ms, VG_PPM), vg_bucket_busy_cap); // the most it holds
	CHECK_EQUAL(vg_bucket_delay(INT64_MIN, 0, VG_PPM), INT64_C(1) << 50);
	// A smaller part counts as the smallest valid part, 0.1 %.
	CHECK_EQUAL(vg_bucket_delay(0, ms, 1000), 1000 * ms);
	CHECK_EQUAL(vg_bucket_delay(0, ms, 999), 1000 * ms);
}

// A launch waits for at most 0.4 ms of allowance, and for at most 20 ms.
static void test_target(void)
{
	CHECK_EQUAL(vg_bucket_target(VG_PPM), 400000);
	CHECK_EQUAL(vg_bucket_target(20001), 400000);
	CHECK_EQUAL(vg_bucket_target(10000), 200000);
	CHECK_EQUAL(vg_bucket_target(1000), 20000);
}

static void test_rate_of_leases(void)
{
	struct vg_lease lease = {700000, start};

	CHECK_EQUAL(vg_bucket_rate(half, lease, start - 1), 700000);
	CHECK_EQUAL(vg_bucket_rate(half, lease, start), half);
	CHECK_EQUAL(vg_bucket_rate(800000, lease, start - 1), 800000);
}

int main(void)
{
	test_bucket_earns_its_part();
	test_bucket_caps();
	test_bucket_of_a_forger();
	test_bucket_uses_leases();
	test_bucket_bounds_leases();
	test_bucket_ignores_ended_leases();
	test_peek();
	test_bucket_refills_in_steps();
	test_bucket_refilled_later();
	test_bucket_of_a_stopped_thread();
	test_bucket_refilled_by_threads();
	test_bucket_caps_forged_balances();
	test_bucket_is_bounded();
	test_bucket_counts_what_is_spent();
	test_delay();
	test_target();
	test_rate_of_leases();
	return 0;
}
