// SPDX-License-Identifier: Apache-2.0

// This test covers the charge of pools that are created and destroyed, while in use too, and of
// pools of each kind.

#include "memory/pool_lifetime.h"

#include <string.h>

#include "memory/pool_destroyed.h"
#include "memory/pool_held.h"
#include "one_pool.h"

// The last allocation of a destroyed pool is freed. Before the free is counted, the driver has
// reused the pool's handle for a new pool, which takes over the record and is also destroyed.
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

// ---- pools of other kinds

static void test_a_pool_on_the_host(void)
{
	const CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST},
		.handleTypes = 1,
	};
	struct vg_pool *host;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	vg_pool_lifetime_made(process, other, &properties);
	host = vg_pool_find(process, 0, other);
	CHECK(host && host->on_host);
	CHECK_EQUAL(host->device, 0);
	CHECK_EQUAL(process->shareable_pools, 0);
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pool_lifetime_ended(process, vg_pool_lifetime_ending(process, other, &(uint64_t){0}), 0, CUDA_SUCCESS);
	CHECK(!host->in_use);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// Managed memory may move to the GPU, regardless of its first place.
static void test_a_pool_of_managed_memory(void)
{
	const CUmemPoolProps properties = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST}};

	begin(200 * mib, 0, 0, handle);
	vg_pool_lifetime_made(process, other, &properties);
	CHECK(!vg_pool_find(process, 0, other)->on_host);
}

static void test_a_pool_that_can_be_exported(void)
{
	CUmemPoolProps properties = on_device;

	properties.handleTypes = 1;
	begin(200 * mib, 0, 0, handle);
	destroy();
	vg_pool_lifetime_made(process, handle, &properties);
	pool = vg_pool_of(process, handle, 0);
	CHECK_EQUAL(process->shareable_pools, 1);
	CHECK_EQUAL(claim(&first, 4 * mib), CUDA_SUCCESS);
	driver_alloc(4 * mib);
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	CHECK(pool->sizes);
	driver.used = 0;
	destroy();
	CHECK(!pool->sizes);
	CHECK_EQUAL(process->shareable_pools, 0);
	CHECK_EQUAL(on_page(), 0);
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

int main(void)
{
	one_pool_driver();
	test_a_piece_of_another_pool();
	test_a_pool_that_is_being_destroyed();
	test_a_destroyed_pool_is_left_alone();
	test_a_pool_on_the_host();
	test_a_pool_of_managed_memory();
	test_a_pool_that_can_be_exported();
	test_a_destroyed_pool_ends_with_its_context();
	return 0;
}
