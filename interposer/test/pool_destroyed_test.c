// SPDX-License-Identifier: Apache-2.0

// This test covers pools that are destroyed while parts of them are in use.

#include "memory/pool_destroyed.h"

#include <string.h>

#include "memory/pool_held.h"
#include "one_pool.h"

// A thread frees the last allocation of a destroyed pool. Before the free is counted, the driver
// reuses the pool's handle for a new pool, which takes over the record and is also destroyed.
static void test_a_piece_of_another_pool(void)
{
	struct vg_pool_piece piece;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	destroy();
	piece = vg_pool_destroyed_find(process, 1);
	CHECK(piece.pool == pool);
	memset(&driver, 0, sizeof driver);
	vg_pool_lifetime_made(process, handle, &on_device);
	CHECK_EQUAL(on_page(), 0);
	CHECK(vg_pool_of(process, handle, 0) == pool);
	CHECK_EQUAL(claim(&first, 60 * mib), CUDA_SUCCESS);
	driver_alloc(60 * mib);
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	destroy();
	vg_pool_destroyed_freed(process, &piece);
	CHECK_EQUAL(on_page(), 60 * mib);
	piece = vg_pool_destroyed_find(process, 1);
	vg_pool_destroyed_freed(process, &piece);
	CHECK_EQUAL(on_page(), 0);
}

// While a pool is being destroyed, another thread searches for allocations of destroyed pools.
static void test_a_pool_that_is_being_destroyed(void)
{
	struct vg_pool *ending;
	uint64_t used = 0;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	destroy();
	memset(&driver, 0, sizeof driver);
	vg_pool_lifetime_made(process, other, &on_device);
	pool = vg_pool_of(process, other, 0);
	CHECK_EQUAL(claim(&first, 40 * mib), CUDA_SUCCESS);
	driver_alloc(40 * mib);
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 140 * mib);
	driver.used = 0;
	ending = vg_pool_lifetime_ending(process, other, &used);
	CHECK(ending == pool);
	vg_pool_destroyed_look(process);
	CHECK_EQUAL(on_page(), 140 * mib);
	vg_pool_lifetime_ended(process, ending, used, CUDA_SUCCESS);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// The driver is not queried about a destroyed pool, which may be gone.
static void test_a_destroyed_pool_is_left_alone(void)
{
	uint64_t held = 7;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK(vg_pool_held_sum(process, 0, &held));
	CHECK_EQUAL(held, 100 * mib);
	CHECK(vg_pool_held_sum(process, 1, &held));
	CHECK_EQUAL(held, 0);
	destroy();
	driver.destroyed = true;
	vg_pool_held_refresh(process);
	CHECK(!vg_pool_held_sum(process, 0, &held));
	vg_pool_held_trim(process, 0);
	CHECK_EQUAL(driver.trims, 0);
	CHECK_EQUAL(on_page(), 100 * mib);
}

static void test_a_destroyed_pool_ends_with_its_context(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	destroy();
	vg_pool_lifetime_context_ended(process, 1);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pool_lifetime_context_ended(process, 0);
	CHECK_EQUAL(on_page(), 0);
}

// ---- frees that streams have yet to reach

static void free_in(bool per_thread)
{
	struct vg_pool_piece piece = vg_pool_destroyed_find(process, 1);

	CHECK(piece.pool == pool && piece.left);
	CHECK_EQUAL(piece.bytes, 60 * mib);
	atomic_store(&process->stale_pools, 0);
	vg_pool_destroyed_freed_in(process, &piece, NULL, per_thread);
	CHECK_EQUAL(process->stale_pools, 1);
}

// begin_freeing creates a process whose pool was destroyed while two pieces of 60 MiB were in use.
static void begin_freeing(void)
{
	memset(&events, 0, sizeof events);
	begin(200 * mib, 120 * mib, 120 * mib, handle);
	destroy();
	CHECK(!vg_pool_destroyed_look(process)); // nothing is outstanding
}

static void test_frees_that_streams_reach(void)
{
	begin_freeing();
	free_in(false);
	CHECK_EQUAL(events.per_thread, 0);
	free_in(true);
	CHECK_EQUAL(events.per_thread, 1);
	for (int i = 0; i < 2; i++) {
		CHECK(vg_pool_destroyed_look(process));
		CHECK_EQUAL(events.left, 2);
		CHECK_EQUAL(on_page(), 120 * mib);
	}
	events.reached = 1;
	CHECK(vg_pool_destroyed_look(process));
	CHECK_EQUAL(events.left, 1);
	CHECK_EQUAL(on_page(), 120 * mib);
	events.reached = 2;
	CHECK(!vg_pool_destroyed_look(process));
	CHECK_EQUAL(events.left, 0);
	CHECK_EQUAL(on_page(), 0);
	CHECK_EQUAL(process->destroyed_pools, 0);
	CHECK(!pool->in_use);
}

// A pool whose frees cannot be counted stays charged until its context ends.
static void test_a_free_that_cannot_be_followed(void)
{
	for (int i = 0; i < 2; i++) {
		begin_freeing();
		if (i)
			events.creation = CUDA_ERROR_OUT_OF_MEMORY;
		else
			events.recording = CUDA_ERROR_OUT_OF_MEMORY;
		free_in(false);
		CHECK_EQUAL(events.left, 0);
		free_in(false); // the pool has more pieces than are known
		CHECK(!vg_pool_destroyed_look(process));
		CHECK_EQUAL(on_page(), 120 * mib);
		vg_pool_lifetime_context_ended(process, 0);
		CHECK_EQUAL(on_page(), 0);
		CHECK_EQUAL(process->destroyed_pools, 0);
	}
}

// The driver reuses the handle before a stream has reached the free of the last piece.
static void test_a_handle_is_reused_before_a_free(void)
{
	struct vg_pool *next;

	begin_freeing();
	free_in(false);
	vg_pool_lifetime_made(process, handle, &on_device);
	next = vg_pool_find(process, 0, handle);
	CHECK(next && next != pool);
	CHECK_EQUAL(on_page(), 120 * mib);
	CHECK(vg_pool_destroyed_look(process));
	events.reached = 1;
	CHECK(!vg_pool_destroyed_look(process));
	CHECK_EQUAL(on_page(), 0);
	CHECK_EQUAL(events.left, 0);
	CHECK(!pool->in_use && next->in_use);
}

// If this thread's mode cannot be changed, a query of an event might invalidate a capture.
static void test_captures_are_left_alone(void)
{
	begin_freeing();
	free_in(false);
	events.reached = 1;
	driver.strict = true;
	CHECK(!vg_pool_destroyed_look(process));
	CHECK_EQUAL(events.left, 1);
	driver.strict = false;
	CHECK(!vg_pool_destroyed_look(process));
	CHECK_EQUAL(events.left, 0);
	CHECK_EQUAL(driver.mode, 0);
}

int main(void)
{
	one_pool_driver();
	test_a_piece_of_another_pool();
	test_a_pool_that_is_being_destroyed();
	test_a_destroyed_pool_is_left_alone();
	test_a_destroyed_pool_ends_with_its_context();
	test_frees_that_streams_reach();
	test_a_free_that_cannot_be_followed();
	test_a_handle_is_reused_before_a_free();
	test_captures_are_left_alone();
	return 0;
}
