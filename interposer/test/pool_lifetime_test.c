// SPDX-License-Identifier: Apache-2.0

// This test covers the charge of pools that are created and destroyed, and of pools of each kind.
// pool_destroyed_test.c tests pools that are destroyed while in use.

#include "memory/pool_lifetime.h"

#include "memory/pool_held.h"
#include "one_pool.h"

// If the driver refuses to destroy the pool, the pool's record does not change.
static void test_a_pool_that_is_not_destroyed(void)
{
	uint64_t used = 0;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK(vg_pool_lifetime_ending(process, handle, &used) == pool);
	CHECK(!vg_pool_find(process, 0, handle));
	vg_pool_lifetime_ended(process, pool, used, CUDA_ERROR_NOT_FOUND);
	CHECK(vg_pool_find(process, 0, handle) == pool);
	CHECK_EQUAL(process->destroyed_pools, 0);
	CHECK_EQUAL(on_page(), 100 * mib);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	CHECK(vg_pool_claim_settle(&first, CUDA_ERROR_NOT_FOUND));
	CHECK(!vg_pool_lifetime_ending(process, other, &used)); // an unknown pool
}

// ---- the pool of a handle

static void test_whose_pool_it_is(void)
{
	begin(200 * mib, 0, 0, handle);
	CHECK(vg_pool_of(process, handle, 1) == pool);
	CHECK(vg_pool_follow(process, 0, handle) == pool);
	pool = vg_pool_of(process, other, 1); // whatever the current GPU is
	CHECK(pool && pool->handle == other);
	CHECK_EQUAL(pool->ordinal, 0);
	CHECK_EQUAL(pool->device, 0);
	CHECK(!vg_pool_of(process, (CUmemoryPool)(uintptr_t)0x3000, 1)); // the other GPU's pool
	CHECK(!vg_pool_of(process, NULL, 1));
	pool = vg_pool_of(process, NULL, 0); // the graph memory
	CHECK(pool && !pool->handle);
	CHECK(vg_pool_of(process, NULL, 0) == pool);
}

// The interposer queries a pool again while the pool holds unused memory.
static void test_stale_pools_are_asked(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	atomic_store(&process->stale_pools, 0);
	driver.held = 80 * mib;
	vg_pool_held_refresh_stale(process);
	CHECK_EQUAL(on_page(), 100 * mib);
	atomic_store(&process->stale_pools, 1);
	vg_pool_held_refresh_stale(process);
	CHECK_EQUAL(on_page(), 80 * mib);
	CHECK_EQUAL(process->stale_pools, 1);
	driver_trim();
	vg_pool_held_refresh_stale(process);
	CHECK_EQUAL(on_page(), 60 * mib);
	CHECK_EQUAL(process->stale_pools, 0);
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

// Managed memory may move to the GPU from any first place.
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

int main(void)
{
	one_pool_driver();
	test_a_pool_that_is_not_destroyed();
	test_whose_pool_it_is();
	test_stale_pools_are_asked();
	test_a_pool_on_the_host();
	test_a_pool_of_managed_memory();
	test_a_pool_that_can_be_exported();
	return 0;
}
