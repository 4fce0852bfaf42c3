// SPDX-License-Identifier: Apache-2.0

// This test covers the effect of the agent's answers, with other calls during a query. The test
// simulates the agent, so that other threads can act between the measurement and the reading of the
// charges.

#define _GNU_SOURCE
#include "memory/audit.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/number.h"
#include "check.h"
#include "fixture.h"
#include "memory/correction.h"
#include "memory/pool_held.h"
#include "pages/held.h"
#include "pages/limits.h"
#include "pages/slot.h"
#include "pages/usage.h"
#include "reserve.h"

static struct vg_state *state;
static uint64_t physical;
static uint64_t pool_held;
static enum vg_held_result agent;
static unsigned questions;
static void (*meanwhile)(void);

void vg_pool_held_refresh(struct vg_state *of)
{
	CHECK(of == state);
}

bool vg_pool_held_sum(struct vg_state *of, uint32_t device, uint64_t *held)
{
	CHECK(of == state);
	CHECK_EQUAL(device, 0);
	*held = pool_held;
	return true;
}

enum vg_held_result vg_held_ask(const char *path, uint32_t slot, struct vg_held *held)
{
	CHECK(strcmp(path, "socket") == 0);
	CHECK_EQUAL(slot, state->pages.slot);
	questions++;
	held->count = 1;
	memcpy(held->gpus[0].uuid, state->pages.uuids[0], sizeof held->gpus[0].uuid);
	held->gpus[0].bytes = physical;
	if (meanwhile)
		meanwhile();
	return agent;
}

static void setup(void)
{
	struct vg_limits_device device = test_device(1, 1 << 20);
	struct vg_error error;
	char dir[256];

	snprintf(dir, sizeof dir, "%s", test_dir());
	CHECK(test_pages_make(dir, &device, 1) == 0);
	state = vg_state_new();
	CHECK(state);
	CHECK(vg_limits_open(&state->pages, dir, &error) == 0);
	CHECK(vg_slot_take(&state->pages, &error) == 0);
	strcpy(state->agent, "socket");
	agent = VG_HELD_ANSWERED;
	meanwhile = NULL;
	pool_held = 0;
	questions = 0;
}

static void teardown(void)
{
	vg_pages_close(&state->pages);
	munmap(state, sizeof *state);
	atomic_store(&vg_the_state, NULL);
}

static void audit(void)
{
	atomic_store(&state->asked_ms, 0);
	atomic_store(&state->silent_until_ms, 0);
	vg_audit(state, 8 * VG_MIB);
}

static uint64_t used(void)
{
	uint64_t sum = vg_usage_memory(&state->pages, 0);

	// The process also stores the sum in memory that other processes of the container cannot
	// write.
	CHECK_EQUAL(atomic_load(&state->pages.own[0]), sum);
	return sum;
}

// estimate charges an estimate. forget releases the charge.
static void estimate(uint64_t bytes)
{
	CHECK(test_reserve(&state->pages, 0, bytes));
	vg_correction_estimate_made(state, 0, bytes);
}

static void forget(uint64_t bytes)
{
	vg_reserve_release(&state->pages, 0, bytes - vg_correction_estimate_gone(state, 0, bytes));
}

static void test_what_grows_without_a_call(void)
{
	setup();
	CHECK(test_reserve(&state->pages, 0, 1000));
	physical = 1100;
	audit();
	CHECK_EQUAL(used(), 1100);
	audit();
	CHECK_EQUAL(used(), 1100);
	physical = 1040;
	audit();
	CHECK_EQUAL(used(), 1040);
	physical = 900; // for example, managed memory that is not on the GPU
	audit();
	CHECK_EQUAL(used(), 1000);
	teardown();
}

// An estimate is corrected in both directions, by at most its size.
static void test_estimates(void)
{
	setup();
	CHECK(test_reserve(&state->pages, 0, 1000));
	estimate(700);
	CHECK_EQUAL(used(), 1700);
	physical = 1100;
	audit();
	CHECK_EQUAL(used(), 1100);
	physical = 500;
	audit();
	CHECK_EQUAL(used(), 1000);
	physical = 1900;
	audit();
	CHECK_EQUAL(used(), 1900);
	teardown();
}

// The end of an estimate first reduces the credit, so that the remaining charge is never too small.
static void test_estimates_end(void)
{
	setup();
	estimate(700); // takes 100
	estimate(300); // takes 200
	physical = 300;
	audit();
	CHECK_EQUAL(used(), 300);
	forget(300);
	CHECK_EQUAL(used(), 300); // the correct sum is 100
	forget(700);
	CHECK_EQUAL(used(), 0);
	estimate(400);
	CHECK_EQUAL(used(), 400);
	teardown();
}

// The end of the last context releases its unmeasured memory.
static void test_last_context(void)
{
	setup();
	vg_correction_context_began(state, 0);
	estimate(500);
	physical = 800;
	audit();
	CHECK_EQUAL(used(), 800);
	vg_reserve_release(&state->pages, 0, 500 - vg_correction_context_ended(state, 0, 500, true));
	CHECK_EQUAL(used(), 0);
	teardown();
}

// begin_context begins a context with an estimated charge of 500. end_context ends the context.
static void begin_context(void)
{
	vg_correction_context_began(state, 0);
	estimate(500);
}

static void end_context(void)
{
	vg_reserve_release(&state->pages, 0, 500 - vg_correction_context_ended(state, 0, 500, true));
}

static void keep_export(uint64_t bytes)
{
	CHECK(test_reserve(&state->pages, 0, bytes));
	vg_correction_export_kept(state, 0, bytes);
}

// Either the context or the export takes the measured memory. The end of the context does not show
// which of the two takes the memory. The next context is not charged in addition.
static void test_context_again(void)
{
	setup();
	begin_context();
	vg_audit_last(state);
	CHECK_EQUAL(questions, 0); // nothing would stay charged
	keep_export(1000);
	physical = 500;
	vg_audit_last(state);
	CHECK_EQUAL(questions, 1);
	CHECK_EQUAL(used(), 500);
	end_context();
	CHECK_EQUAL(used(), 500);
	CHECK_EQUAL(vg_correction_context_again(state, 0, 500), 500);
	CHECK_EQUAL(vg_correction_context_again(state, 0, 500), 0);
	vg_correction_context_failed(state, 0, 500);
	CHECK_EQUAL(vg_correction_context_again(state, 0, 500), 500);
	CHECK_EQUAL(used(), 500);
	vg_correction_context_failed(state, 0, 500);
	forget(1000);
	CHECK_EQUAL(used(), 0);
	begin_context();
	physical = 100;
	audit();
	end_context();
	CHECK_EQUAL(used(), 0);
	CHECK_EQUAL(vg_correction_context_again(state, 0, 500), 0); // nothing stayed charged
	teardown();
}

// Estimates that end before the next context begins reduce the charge that the context would reuse.
static void test_estimate_ends_before_a_context(void)
{
	setup();
	begin_context(); // actually takes 500
	keep_export(300); // actually takes 300
	estimate(1000); // a library that takes no memory
	physical = 800;
	audit();
	CHECK_EQUAL(used(), 800);
	end_context();
	CHECK_EQUAL(used(), 800);
	forget(1000);
	CHECK_EQUAL(used(), 300);
	CHECK_EQUAL(vg_correction_context_again(state, 0, 500), 0);
	teardown();
}

static void take(void)
{
	vg_calls_begin(state);
	CHECK(test_reserve(&state->pages, 0, 100));
	physical += 100;
	vg_calls_end(state);
	meanwhile = NULL;
}

static void give(void)
{
	vg_calls_begin(state);
	physical -= 300;
	vg_reserve_release(&state->pages, 0, 300);
	vg_calls_end(state);
	meanwhile = NULL;
}

// An estimate of 300, too large by 200, ends during the measurement of another estimate.
static void give_estimate(void)
{
	vg_calls_begin(state);
	physical -= 100;
	forget(300);
	vg_calls_end(state);
	meanwhile = NULL;
}

// The measurement is from before another thread's call, and the charges are from after that call.
static void test_calls_meanwhile(void (*call)(void), uint64_t want)
{
	setup();
	CHECK(test_reserve(&state->pages, 0, 1000));
	physical = 1100;
	audit();
	CHECK_EQUAL(used(), 1100);
	meanwhile = call;
	audit();
	CHECK_EQUAL(used(), want);
	CHECK_EQUAL(used(), physical);
	audit();
	CHECK_EQUAL(used(), physical);
	teardown();
}

static void test_estimate_ends_meanwhile(void)
{
	setup();
	estimate(300);
	estimate(500); // actually takes 500
	physical = 600;
	meanwhile = give_estimate;
	audit();
	CHECK_EQUAL(used(), 500);
	CHECK_EQUAL(physical, 500);
	teardown();
}

// A call in progress prevents the query.
static void test_calls_under_way(void)
{
	setup();
	estimate(500);
	physical = 100;
	vg_calls_begin(state);
	audit();
	CHECK_EQUAL(questions, 0);
	CHECK(!vg_audit_refusal(state));
	vg_calls_end(state);
	CHECK(vg_audit_refusal(state));
	CHECK_EQUAL(used(), 100);
	CHECK(!vg_audit_refusal(state)); // nothing has changed
	CHECK_EQUAL(questions, 1);
	teardown();
}

// Without an answer, the charges stay. A silent agent is not queried again immediately.
static void test_no_answer(void)
{
	setup();
	estimate(500);
	physical = 100;
	agent = VG_HELD_NOBODY;
	CHECK(!vg_audit_refusal(state));
	CHECK(!vg_audit_refusal(state));
	CHECK_EQUAL(questions, 2);
	agent = VG_HELD_SILENT;
	CHECK(!vg_audit_refusal(state));
	CHECK(!vg_audit_refusal(state));
	CHECK_EQUAL(questions, 3);
	CHECK_EQUAL(used(), 500);
	physical = 0; // unknown
	agent = VG_HELD_ANSWERED;
	teardown();
}

// An unanswered query is repeated after the backoff. A query that was not made is made after the
// usual interval.
static void test_question_repeated(void)
{
	const struct timespec silence = {.tv_nsec = 130000000};

	setup();
	estimate(500);
	physical = 100;
	agent = VG_HELD_SILENT;
	audit();
	vg_audit_doubt(state);
	CHECK_EQUAL(questions, 1);
	nanosleep(&silence, NULL);
	agent = VG_HELD_ANSWERED;
	vg_audit_doubt(state);
	CHECK_EQUAL(questions, 2);
	CHECK_EQUAL(used(), 100);
	estimate(50);
	nanosleep(&silence, NULL);
	vg_audit_doubt(state);
	CHECK_EQUAL(questions, 2);
	teardown();
}

// These functions query the agent in a thread that is cancelled meanwhile.
static void *cancelled_audit(void *unused)
{
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	vg_audit(state, 8 * VG_MIB);
	pthread_testcancel();
	return unused;
}

static void *cancelled_refusal(void *unused)
{
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	CHECK(!vg_audit_refusal(state));
	pthread_testcancel();
	return unused;
}

// A thread that is cancelled while the agent is silent leaves queries to other threads.
static void test_cancelled(void *(*ask)(void *))
{
	pthread_t thread;
	void *result;

	setup();
	estimate(500);
	physical = 100;
	agent = VG_HELD_SILENT;
	meanwhile = pthread_testcancel;
	CHECK_EQUAL(pthread_create(&thread, NULL, ask, NULL), 0);
	CHECK_EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED); // the cancellation takes effect after the query
	CHECK_EQUAL(questions, 1);
	CHECK_EQUAL(used(), 500);
	meanwhile = NULL;
	agent = VG_HELD_ANSWERED;
	audit();
	CHECK_EQUAL(questions, 2);
	CHECK_EQUAL(used(), 100);
	teardown();
}

// charge_pool sets the first pool's charge to a value other than its memory.
static void charge_pool(uint64_t charged, uint64_t held)
{
	struct vg_pool *pool = &state->pools[0];

	if (charged > pool->charged)
		CHECK(test_reserve(&state->pages, 0, charged - pool->charged));
	else
		vg_reserve_release(&state->pages, 0, pool->charged - charged);
	pool->in_use = true;
	state->pools_end = 1;
	pool->charged = charged;
	pool_held = held;
}

static void refresh_pool(void)
{
	charge_pool(pool_held, pool_held);
	meanwhile = NULL;
}

// A pool that returns memory without a call stays charged until the next query of the pool.
static void test_pool_that_shrinks(void)
{
	setup();
	CHECK(test_reserve(&state->pages, 0, 1000));
	charge_pool(500, 500);
	physical = 1600;
	audit();
	CHECK_EQUAL(used(), 1600);
	charge_pool(500, 200);
	physical = 1300;
	audit();
	CHECK_EQUAL(used(), 1600);
	meanwhile = refresh_pool;
	audit();
	CHECK_EQUAL(used(), 1300);
	teardown();
}

// After a forgery of the page, the agent's observation is a lower bound of the container's use,
// whatever this process measures.
static void test_floor_stays(void)
{
	char dir[sizeof state->pages.usage_path];
	char *end;

	setup();
	memcpy(dir, state->pages.usage_path, sizeof dir);
	end = strrchr(dir, '/');
	CHECK(end);
	*end = '\0';
	estimate(8192);
	CHECK(test_pages_observe(dir, 0, 40960) == 0);
	CHECK_EQUAL(vg_usage_floor(&state->pages, 0), 40960);
	physical = 4096;
	audit();
	CHECK_EQUAL(atomic_load(&state->pages.own[0]), 4096);
	CHECK_EQUAL(vg_usage_floor(&state->pages, 0), 40960);
	teardown();
}

int main(void)
{
	test_what_grows_without_a_call();
	test_estimates();
	test_estimates_end();
	test_last_context();
	test_context_again();
	test_estimate_ends_before_a_context();
	test_calls_meanwhile(take, 1200);
	test_calls_meanwhile(give, 800);
	test_estimate_ends_meanwhile();
	test_calls_under_way();
	test_no_answer();
	test_question_repeated();
	test_cancelled(cancelled_audit);
	test_cancelled(cancelled_refusal);
	test_pool_that_shrinks();
	test_floor_stays();
	return 0;
}
