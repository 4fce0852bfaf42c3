// SPDX-License-Identifier: Apache-2.0

// This test covers a pool's charge when threads query and grow the pool in an order that is very
// rare on a real machine.

#include "memory/pool.h"

#include "memory/pool_held.h"
#include "one_pool.h"

static struct vg_claim second, third;

// Two calls with a claim use up a pool's spare memory, which was reserved for a third call. An
// answer from after the two calls is applied before the charges of these calls.
static void settle_second(void);

static void refresh(void)
{
	vg_pool_held_refresh(process);
}

static void settle_second(void)
{
	driver.meanwhile = refresh;
	CHECK(vg_pool_claim_settle(&second, CUDA_SUCCESS));
}

static void test_a_promise_outlives_claims_that_settle_late(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(claim(&second, 50 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(claim(&third, 40 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(third.call.borrowed, 40 * mib);
	driver_alloc(50 * mib);
	driver_alloc(50 * mib);
	driver.meanwhile = settle_second;
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 200 * mib);
	driver_alloc(40 * mib);
	CHECK_EQUAL(driver.held, 200 * mib);
	CHECK(vg_pool_claim_settle(&third, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 200 * mib);
}

// A pool's spare memory is used before the answer arrives.
static void use_up(void)
{
	driver_alloc(40 * mib);
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
}

static void test_an_old_answer_promises_nothing(void)
{
	begin(140 * mib, 100 * mib, 60 * mib, handle);
	CHECK_EQUAL(claim(&first, 40 * mib), CUDA_SUCCESS);
	driver.meanwhile = use_up;
	CHECK_EQUAL(claim(&second, 40 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(on_page(), 140 * mib);
	driver_alloc(40 * mib);
	CHECK_EQUAL(driver.held, 140 * mib);
	CHECK(vg_pool_claim_settle(&second, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 140 * mib);
}

// A pool that has returned its spare memory takes whole steps again.
static void test_a_promise_is_of_whole_steps(void)
{
	begin(100 * mib, 100 * mib, 51 * mib + 900 * 1024, handle);
	CHECK_EQUAL(claim(&first, 300 * 1024), CUDA_SUCCESS);
	CHECK_EQUAL(first.call.borrowed, 300 * 1024);
	driver_trim();
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 54 * mib);
	driver_alloc(300 * 1024);
	CHECK_EQUAL(driver.held, 54 * mib);
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 54 * mib);
}

// The driver grants memory, and then does not report its pool's memory.
static void test_no_answer_frees_nothing(void)
{
	begin(200 * mib, 100 * mib, 100 * mib, handle);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	driver_alloc(50 * mib);
	driver.silent = true;
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 150 * mib);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	CHECK(vg_pool_claim_settle(&first, CUDA_ERROR_NOT_FOUND));
	CHECK_EQUAL(on_page(), 150 * mib);
	driver.silent = false;
	driver.used = 10 * mib;
	driver_trim();
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 10 * mib);
}

// No other call may use the memory of a graph's earlier launch during the graph's next launch.
// After another call has used the memory, the graph must claim the memory again.
static void test_a_graph_keeps_what_it_owns(void)
{
	uint64_t epoch;

	begin(100 * mib, 100 * mib, 40 * mib, NULL);
	epoch = atomic_load(&process->graph_epoch);
	CHECK(vg_pool_claim_keep(process, pool, 60 * mib, epoch));
	CHECK(claim(&first, 10 * mib) != CUDA_SUCCESS);
	driver_alloc(60 * mib);
	vg_pool_claim_kept(process, pool, 60 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	driver.used = 40 * mib;
	epoch = atomic_load(&process->graph_epoch);
	CHECK_EQUAL(claim(&first, 10 * mib), CUDA_SUCCESS);
	CHECK(!vg_pool_claim_keep(process, pool, 60 * mib, epoch));
	driver_alloc(10 * mib);
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 100 * mib);
}

// A query that begins before a graph's launch and ends after the launch reports too little memory.
static void launch_again(void)
{
	driver_alloc(60 * mib);
	vg_pool_claim_kept(process, pool, 60 * mib);
}

static void test_a_graph_is_charged_for_what_it_takes_again(void)
{
	begin(100 * mib, 100 * mib, 40 * mib, NULL);
	CHECK(vg_pool_claim_keep(process, pool, 60 * mib, atomic_load(&process->graph_epoch)));
	driver_trim();
	driver.meanwhile = launch_again;
	vg_pool_held_refresh(process);
	CHECK_EQUAL(driver.held, 100 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// ---- pools with unused memory

static void test_trimming(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK(!vg_pool_held_trim(process, 1)); // the process has no pool on that GPU
	CHECK_EQUAL(driver.trims, 0);
	CHECK(vg_pool_held_trim(process, 0));
	CHECK_EQUAL(driver.trims, 1);
	CHECK_EQUAL(driver.mode, 0); // the mode is restored
	CHECK_EQUAL(on_page(), 60 * mib);
	// If this thread's mode cannot be changed, a trim might invalidate a capture.
	driver.strict = true;
	driver.held = 100 * mib;
	vg_pool_held_trim(process, 0);
	CHECK_EQUAL(driver.trims, 1);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// After a trim, a graph may no longer use the memory of its earlier launch.
static void test_trimming_the_memory_of_graphs(void)
{
	uint64_t epoch;

	begin(200 * mib, 100 * mib, 60 * mib, NULL);
	epoch = atomic_load(&process->graph_epoch);
	CHECK(vg_pool_held_trim(process, 0));
	CHECK_EQUAL(on_page(), 60 * mib);
	CHECK(!vg_pool_claim_keep(process, pool, 40 * mib, epoch));
}

// Before a refusal, pools release unused memory.
static void test_trimming_before_a_refusal(void)
{
	begin(100 * mib, 100 * mib, 60 * mib, handle);
	CHECK_EQUAL(vg_claim_on(&second, 0, VG_WAY_ARRAY, 40 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(driver.trims, 1);
	CHECK_EQUAL(on_page(), 100 * mib);
	CHECK_EQUAL(vg_claim_on(&third, 0, VG_WAY_ARRAY, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(vg_claim_on(&third, 0, VG_WAY_ARRAY, 101 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(driver.trims, 2); // no trim for a claim above the limit
	vg_claim_void(&second);
}

// A query of a pool's memory does not reduce a call's claim.
static void test_asking_during_a_call(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 150 * mib);
	CHECK(vg_pool_claim_settle(&first, CUDA_ERROR_NOT_FOUND));
	CHECK_EQUAL(on_page(), 100 * mib);
}

int main(void)
{
	one_pool_driver();
	test_a_promise_outlives_claims_that_settle_late();
	test_an_old_answer_promises_nothing();
	test_a_promise_is_of_whole_steps();
	test_no_answer_frees_nothing();
	test_a_graph_keeps_what_it_owns();
	test_a_graph_is_charged_for_what_it_takes_again();
	test_trimming();
	test_trimming_the_memory_of_graphs();
	test_trimming_before_a_refusal();
	test_asking_during_a_call();
	return 0;
}
