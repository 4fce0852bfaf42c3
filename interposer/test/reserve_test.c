// SPDX-License-Identifier: Apache-2.0

// This test checks that reservations never exceed the limit and are never refused within the limit.
// Threads and processes reserve concurrently, and some processes are killed.

#define _GNU_SOURCE
#include "pages/reserve.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/now.h"
#include "check.h"
#include "fixture.h"
#include "pages/limits.h"
#include "pages/slot.h"
#include "pages/usage.h"
#include "reserve.h"

enum { processes = 8, threads = 8 };

static char dir[256];
static struct vg_pages pages;

static void make_pages(uint64_t limit)
{
	struct vg_limits_device device = test_device(1, limit);

	snprintf(dir, sizeof dir, "%s", test_dir());
	CHECK(test_pages_make(dir, &device, 1) == 0);
}

static void attach(struct vg_pages *to)
{
	struct vg_error error;

	memset(to, 0, sizeof *to);
	CHECK(vg_limits_open(to, dir, &error) == 0);
	CHECK(vg_slot_take(to, &error) == 0);
}

// ---- one process

static void test_limit_is_exact(void)
{
	make_pages(1000);
	attach(&pages);
	CHECK(test_reserve(&pages, 0, 999));
	CHECK(!test_reserve(&pages, 0, 2));
	CHECK(test_reserve(&pages, 0, 1));
	CHECK(!test_reserve(&pages, 0, 1));
	CHECK(test_reserve(&pages, 0, 0));
	vg_reserve_release(&pages, 0, 1000);
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 0);
	CHECK(!vg_reserve_hold_at_once(&pages, 0, 1001));
	CHECK(vg_reserve_hold_at_once(&pages, 0, 1000));
	CHECK(!vg_reserve_hold_at_once(&pages, 0, 1));
	vg_reserve_settle(&pages, 0, 1000, 0);
	CHECK(!test_reserve(&pages, 0, UINT64_MAX));
	CHECK(!test_reserve(&pages, 0, 1001));
	CHECK_EQUAL(vg_slot_device(&pages, (uint32_t)pages.slot, 0)->pending, 0);
	CHECK_EQUAL(vg_slot_device(&pages, (uint32_t)pages.slot, 0)->peak, 1000);
	CHECK_EQUAL(pages.usage->header.devices[0].peak, 1000);
	vg_pages_close(&pages);
}

static void test_peak_of_all_processes(void)
{
	static struct vg_pages other;

	make_pages(1000);
	attach(&pages);
	attach(&other);
	CHECK(test_reserve(&pages, 0, 300));
	CHECK(test_reserve(&other, 0, 400));
	vg_reserve_release(&pages, 0, 300);
	CHECK(test_reserve(&other, 0, 100));
	CHECK_EQUAL(vg_slot_device(&other, (uint32_t)other.slot, 0)->peak, 500);
	CHECK_EQUAL(pages.usage->header.devices[0].peak, 700);
	vg_pages_close(&other);
	vg_pages_close(&pages);
}

// own_slot returns this process's slot on the page of its GPU.
static const struct vg_slot_device *own_slot(void)
{
	return vg_slot_device(&pages, (uint32_t)pages.slot, 0);
}

static void test_refusals_by_way(void)
{
	const struct vg_usage_header *header;

	make_pages(1000);
	attach(&pages);
	header = &pages.usage->header;
	vg_reserve_refused(&pages, 0, VG_WAY_POOL, 7);
	vg_reserve_refused(&pages, 0, VG_WAY_POOL, 8);
	vg_reserve_refused(&pages, 0, VG_WAY_ALLOC, 9);
	vg_reserve_refused(&pages, 0, UINT32_MAX, 10);
	CHECK_EQUAL(header->devices[0].refusals, 4);
	CHECK_EQUAL(header->refusals[0].counts[VG_WAY_POOL], 2);
	CHECK_EQUAL(header->refusals[0].counts[VG_WAY_ALLOC], 1);
	CHECK_EQUAL(header->refusals[1].counts[VG_WAY_NONE], 0);
	CHECK_EQUAL(own_slot()->refusals, 4);
	vg_reserve_refused(&pages, 0, VG_WAY_ALLOC, (UINT64_C(1) << 56) - 2);
	CHECK_EQUAL(own_slot()->last_refusal, ((uint64_t)VG_WAY_ALLOC << 56) + (UINT64_C(1) << 56) - 2);
	vg_reserve_refused(&pages, 0, VG_WAY_POOL, UINT64_MAX); // more than the field can hold
	CHECK_EQUAL(own_slot()->last_refusal, ((uint64_t)VG_WAY_POOL << 56) + (UINT64_C(1) << 56) - 1);
	CHECK_EQUAL(header->devices[0].last_refusal, own_slot()->last_refusal);
	vg_pages_close(&pages);
}

// The memory that the driver took is charged, even if it is less or more than the reservation.
static void test_settle(void)
{
	make_pages(1000);
	attach(&pages);
	CHECK(vg_reserve_hold(&pages, 0, 600));
	CHECK_EQUAL(own_slot()->pending, 600);
	vg_reserve_settle(&pages, 0, 600, 250);
	CHECK_EQUAL(own_slot()->pending, 0);
	CHECK_EQUAL(own_slot()->used, 250);
	CHECK_EQUAL(atomic_load(&pages.own[0]), 250);
	CHECK(vg_reserve_hold(&pages, 0, 100));
	vg_reserve_settle(&pages, 0, 40, 0);
	CHECK_EQUAL(own_slot()->pending, 60);
	vg_reserve_settle(&pages, 0, 0, 5);
	CHECK_EQUAL(own_slot()->pending, 60);
	CHECK_EQUAL(own_slot()->used, 255);
	CHECK_EQUAL(own_slot()->peak, 255);
	// Bytes that are counted twice cause no peak above the limit.
	pages.usage->header.high_water = 2;
	vg_slot_device(&pages, 1, 0)->used = 5000;
	vg_reserve_settle(&pages, 0, 60, 60);
	CHECK_EQUAL(pages.usage->header.devices[0].peak, 1000);
	vg_pages_close(&pages);
}

// A correction depends only on this process's memory, with or without a limit.
static void test_adjust(void)
{
	make_pages(1000);
	attach(&pages);
	CHECK(test_reserve(&pages, 0, 300));
	vg_reserve_adjust(&pages, 0, 300, 1200);
	CHECK_EQUAL(own_slot()->used, 1200);
	CHECK_EQUAL(own_slot()->peak, 1200);
	CHECK_EQUAL(pages.usage->header.devices[0].peak, 1200);
	CHECK_EQUAL(atomic_load(&pages.own[0]), 1200);
	CHECK_EQUAL(pages.own_then[0], 900);
	vg_reserve_adjust(&pages, 0, 500, 500);
	CHECK_EQUAL(own_slot()->used, 1200);
	vg_reserve_adjust(&pages, 0, 1200, 400);
	CHECK_EQUAL(own_slot()->used, 400);
	CHECK_EQUAL(atomic_load(&pages.own[0]), 400);
	CHECK_EQUAL(pages.own_then[0], 100);
	vg_reserve_adjust(&pages, 0, 900, 0); // more than the process has
	CHECK_EQUAL(own_slot()->used, 0);
	CHECK_EQUAL(atomic_load(&pages.own[0]), 0);
	CHECK_EQUAL(pages.own_then[0], 0);
	vg_reserve_adjust(&pages, 0, 0, UINT64_MAX);
	vg_reserve_adjust(&pages, 0, 0, UINT64_MAX);
	CHECK_EQUAL(atomic_load(&pages.own[0]), UINT64_MAX);
	vg_pages_close(&pages);
}

// If other processes use the memory permanently, a claim is refused without a wait.
static void test_refusal_at_once(void)
{
	static struct vg_pages other;
	uint64_t start;

	make_pages(1000);
	attach(&pages);
	attach(&other);
	CHECK(test_reserve(&other, 0, 900));
	start = vg_now();
	CHECK(!test_reserve(&pages, 0, 101));
	CHECK(vg_now() - start < 500000000);
	CHECK(test_reserve(&pages, 0, 100));
	vg_pages_close(&other);
	vg_pages_close(&pages);
}

static void test_limit_changes_while_running(void)
{
	struct vg_limits_device device = test_device(1, 500);

	make_pages(1000);
	attach(&pages);
	CHECK(test_reserve(&pages, 0, 800));
	CHECK(test_pages_update(dir, &device, 1) == 0);
	CHECK(!test_reserve(&pages, 0, 1));
	vg_reserve_release(&pages, 0, 400);
	CHECK(test_reserve(&pages, 0, 100));
	device.memory_bytes = 2000;
	CHECK(test_pages_update(dir, &device, 1) == 0);
	CHECK(test_reserve(&pages, 0, 1500));
	vg_pages_close(&pages);
}

static void test_bytes_a_dead_process_left_pending(void)
{
	static struct vg_pages other;

	make_pages(1000);
	attach(&pages);
	attach(&other);
	vg_add(&vg_slot_device(&other, (uint32_t)other.slot, 0)->pending, 900);
	vg_pages_close(&other); // the child drops its lock
	CHECK(test_reserve(&pages, 0, 1000));
	vg_pages_close(&pages);
}

static void test_process_stopped_with_bytes_pending(void)
{
	static struct vg_pages other;
	uint64_t start = vg_now();
	uint64_t first;

	make_pages(1000);
	attach(&pages);
	attach(&other);
	vg_add(&vg_slot_device(&other, (uint32_t)other.slot, 0)->pending, 900);
	CHECK(!test_reserve(&pages, 0, 200)); // after the wait, the pending bytes count as granted
	first = vg_now() - start;
	CHECK(first < 5000000000);
	start = vg_now();
	for (int i = 0; i < 5; i++)
		CHECK(!test_reserve(&pages, 0, 200));
	CHECK(vg_now() - start < first / 2); // no second wait for the same pending bytes
	CHECK(test_reserve(&pages, 0, 100));
	vg_pages_close(&other);
	vg_pages_close(&pages);
}

static void *cancelled_waiter(void *unused)
{
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	CHECK(!test_reserve(&pages, 0, 200));
	pthread_testcancel();
	return unused;
}

// A thread that is cancelled while it waits for room does not block other threads, and leaves no
// pending bytes.
static void test_cancelled_while_waiting(void)
{
	static struct vg_pages other;
	pthread_t thread;
	void *result;

	make_pages(1000);
	attach(&pages);
	attach(&other);
	vg_add(&vg_slot_device(&other, (uint32_t)other.slot, 0)->pending, 900);
	CHECK_EQUAL(pthread_create(&thread, NULL, cancelled_waiter, NULL), 0);
	CHECK_EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK_EQUAL(vg_slot_device(&pages, (uint32_t)pages.slot, 0)->pending, 0);
	alarm(10); // a process would wait without end
	CHECK(!test_reserve(&pages, 0, 200));
	alarm(0);
	vg_sub(&vg_slot_device(&other, (uint32_t)other.slot, 0)->pending, 900);
	CHECK(test_reserve(&pages, 0, 1000));
	vg_pages_close(&other);
	vg_pages_close(&pages);
}

static void test_hostile_counters(void)
{
	struct vg_slot_device *other;

	make_pages(1000);
	attach(&pages);
	other = vg_slot_device(&pages, 1, 0);
	pages.usage->header.high_water = UINT32_MAX;
	other->used = UINT64_MAX;
	other->pending = UINT64_MAX;
	vg_reserve_release(&pages, 0, UINT64_MAX);
	CHECK(test_reserve(&pages, 0, 1000)); // no process holds that slot
	CHECK(!test_reserve(&pages, 0, 1));
	vg_pages_close(&pages);
}

// ---- observations

enum { unit = 1 << VG_OBSERVED_LOOK_BITS };

// forge clears all processes' memory on the page.
static void forge(void)
{
	for (uint32_t i = 0; i < 4; i++)
		vg_slot_device(&pages, i, 0)->used = vg_slot_device(&pages, i, 0)->pending = 0;
}

static void test_own_memory_is_not_forgotten(void)
{
	make_pages(1000);
	attach(&pages);
	CHECK(test_reserve(&pages, 0, 900));
	forge();
	CHECK(!test_reserve(&pages, 0, 101));
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 900);
	vg_reserve_release(&pages, 0, 900);
	CHECK(test_reserve(&pages, 0, 1000));
	vg_pages_close(&pages);
}

// The test repeatedly forges a page without memory, while the container holds 70 of its 100 units.
static void test_observed_on_a_forged_page(void)
{
	uint64_t granted = 0;

	make_pages(100 * unit);
	attach(&pages);
	CHECK(test_pages_observe(dir, 0, 70 * unit) == 0);
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 70 * unit);
	CHECK(!test_reserve(&pages, 0, 31 * unit));
	for (int i = 0; i < 100; i++) {
		forge();
		granted += test_reserve(&pages, 0, unit);
	}
	CHECK_EQUAL(granted, 30);
	vg_reserve_release(&pages, 0, 10 * unit); // the process may reuse its freed memory at once
	CHECK(!test_reserve(&pages, 0, 11 * unit));
	CHECK(test_reserve(&pages, 0, 10 * unit));
	vg_pages_close(&pages);
}

// The next observation includes the grants since the previous observation. An observation with the
// same value as the previous observation counts as new.
static void test_next_look(void)
{
	make_pages(100 * unit);
	attach(&pages);
	CHECK(test_pages_observe(dir, 0, 60 * unit) == 0);
	CHECK(test_reserve(&pages, 0, 40 * unit));
	CHECK(!test_reserve(&pages, 0, 1));
	CHECK(test_pages_observe(dir, 0, 60 * unit) == 0);
	CHECK(test_reserve(&pages, 0, 40 * unit));
	CHECK(!test_reserve(&pages, 0, 1));
	CHECK(test_pages_observe(dir, 0, 100 * unit) == 0);
	vg_reserve_release(&pages, 0, 80 * unit); // before the process has read the observation
	CHECK(!test_reserve(&pages, 0, 1));
	CHECK(test_pages_observe(dir, 0, 0) == 0);
	CHECK(test_reserve(&pages, 0, 100 * unit));
	vg_reserve_release(&pages, 0, 50 * unit);
	CHECK(test_pages_observe(dir, 0, 100 * unit) == 0); // cleared in between
	CHECK(!test_reserve(&pages, 0, 1));
	vg_pages_close(&pages);
}

static void test_observed_less_than_claimed(void)
{
	make_pages(100 * unit);
	attach(&pages);
	CHECK(test_reserve(&pages, 0, 50 * unit));
	CHECK(test_pages_observe(dir, 0, unit) == 0);
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 50 * unit);
	vg_reserve_release(&pages, 0, 50 * unit); // more than was observed
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 0);
	CHECK(test_pages_observe(dir, 0, UINT64_MAX - 2 * unit) == 0);
	CHECK(!test_reserve(&pages, 0, 1));
	vg_pages_close(&pages);
}

// ---- many processes with many threads

// The ledger is the test's own count of the held bytes. Only the test writes the ledger.
static _Atomic uint64_t *held;

static uint64_t random_below(uint64_t *seed, uint64_t bound)
{
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (*seed >> 33) % bound;
}

struct storm {
	uint64_t limit;
	uint64_t smallest;
	uint64_t largest;
	uint64_t until;
	int must_succeed;
};

static struct storm storm;

static void *storm_thread(void *argument)
{
	uint64_t seed = (uint64_t)(uintptr_t)argument;

	while (vg_now() < storm.until) {
		uint64_t bytes = storm.smallest +
				 random_below(&seed, storm.largest - storm.smallest + 1);

		if (!test_reserve(&pages, 0, bytes)) {
			CHECK(!storm.must_succeed);
			continue;
		}
		CHECK(atomic_fetch_add(held, bytes) + bytes <= storm.limit);
		if (random_below(&seed, 8) == 0)
			usleep(100);
		atomic_fetch_sub(held, bytes);
		vg_reserve_release(&pages, 0, bytes);
	}
	return NULL;
}

static void storm_process(uint64_t number)
{
	pthread_t ids[threads];

	attach(&pages);
	for (uint64_t i = 0; i < threads; i++)
		CHECK(pthread_create(&ids[i], NULL, storm_thread,
				     (void *)(uintptr_t)(number * 1000 + i + 1)) == 0);
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
	_exit(0);
}

static void run_storm(pid_t pids[processes])
{
	make_pages(storm.limit);
	atomic_store(held, 0);
	for (uint64_t i = 0; i < processes; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (pids[i] == 0)
			storm_process(i);
	}
}

static void expect_clean_ends(const pid_t pids[processes])
{
	for (int i = 0; i < processes; i++) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
}

static void test_never_over_the_limit(void)
{
	pid_t pids[processes];

	storm = (struct storm){.limit = 10000, .smallest = 1, .largest = 4000,
			       .until = vg_now() + 1500000000};
	run_storm(pids);
	expect_clean_ends(pids);
}

// If the limit has room for all processes, no claim is refused, however often pending bytes make
// the sum temporarily too large.
static void test_no_false_refusal(void)
{
	pid_t pids[processes];

	storm = (struct storm){.limit = 100 * processes * threads, .smallest = 100, .largest = 100,
			       .until = vg_now() + 1500000000, .must_succeed = 1};
	run_storm(pids);
	expect_clean_ends(pids);
}

static void test_kills_leave_nothing(void)
{
	uint64_t seed = 7;
	pid_t pids[processes];

	storm = (struct storm){.limit = UINT64_MAX / 2, .smallest = 1, .largest = 4000,
			       .until = UINT64_MAX};
	run_storm(pids);
	for (int round = 0; round < 30; round++) {
		uint64_t victim = random_below(&seed, processes);

		usleep(20000);
		kill(pids[victim], SIGKILL);
		CHECK(waitpid(pids[victim], NULL, 0) == pids[victim]);
		pids[victim] = fork();
		CHECK(pids[victim] >= 0);
		if (pids[victim] == 0)
			storm_process((uint64_t)round);
	}
	for (int i = 0; i < processes; i++) {
		kill(pids[i], SIGKILL);
		CHECK(waitpid(pids[i], NULL, 0) == pids[i]);
	}
	attach(&pages);
	vg_slots_reap(&pages, 0);
	CHECK_EQUAL(vg_usage_memory(&pages, 0), 0);
	CHECK(test_reserve(&pages, 0, storm.limit));
	vg_pages_close(&pages);
}

int main(void)
{
	held = mmap(NULL, sizeof *held, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(held != MAP_FAILED);
	test_limit_is_exact();
	test_peak_of_all_processes();
	test_refusals_by_way();
	test_settle();
	test_adjust();
	test_refusal_at_once();
	test_limit_changes_while_running();
	test_bytes_a_dead_process_left_pending();
	test_process_stopped_with_bytes_pending();
	test_cancelled_while_waiting();
	test_hostile_counters();
	test_own_memory_is_not_forgotten();
	test_observed_on_a_forged_page();
	test_next_look();
	test_observed_less_than_claimed();
	test_never_over_the_limit();
	test_no_false_refusal();
	test_kills_leave_nothing();
	return 0;
}
