// SPDX-License-Identifier: Apache-2.0

// This test covers the charge of pools of other processes.

#include "memory/pool.h"

#include "memory/pool_held.h"
#include "one_pool.h"

static void import(uint64_t bytes)
{
	CHECK(vg_pool_imported(process, handle, 0) == pool);
	CHECK_EQUAL(vg_pool_claim_pointer(&first, pool, bytes), CUDA_SUCCESS);
	CHECK(vg_pool_claim_settle_pointer(&first, bytes));
}

// An imported pool is charged at least with its pointers, and with the memory that it keeps.
static void test_an_imported_pool(void)
{
	uint32_t life;

	begin(200 * mib, 0, 0, handle);
	life = vg_pool_life(process, pool);
	import(60 * mib);
	CHECK_EQUAL(on_page(), 60 * mib);
	driver.held = 100 * mib;
	import(40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pool_held_drop_pointer(process, pool, life, 40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	driver.held = 0;
	vg_pool_held_drop_pointer(process, pool, life + 1, 60 * mib);
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 60 * mib);
	vg_pool_held_drop_pointer(process, pool, life, 60 * mib);
	CHECK_EQUAL(on_page(), 0);
}

static uint64_t uncertain(void)
{
	return process->corrections[0].uncertain;
}

// The agent may attribute an imported pool's memory to the exporter. Therefore the whole charge is
// uncertain, from the import to the end.
static void test_an_imported_pool_is_uncertain(void)
{
	begin(200 * mib, 0, 0, handle);
	import(60 * mib);
	CHECK_EQUAL(uncertain(), 60 * mib);
	driver.held = 100 * mib;
	vg_pool_held_refresh(process);
	CHECK_EQUAL(uncertain(), 100 * mib);
	driver.held = 0;
	vg_pool_held_drop_pointer(process, pool, vg_pool_life(process, pool), 60 * mib);
	CHECK_EQUAL(uncertain(), 0);

	begin(200 * mib, 100 * mib, 60 * mib, handle); // an already known pool
	CHECK_EQUAL(uncertain(), 0);
	import(40 * mib);
	CHECK_EQUAL(uncertain(), 100 * mib);
	import(20 * mib);
	CHECK_EQUAL(uncertain(), 100 * mib);
	vg_pool_held_drop_pointer(process, pool, vg_pool_life(process, pool), 60 * mib);
	CHECK_EQUAL(uncertain(), 100 * mib);
	driver.used = 0;
	destroy();
	CHECK_EQUAL(uncertain(), 0);
	CHECK_EQUAL(on_page(), 0);
}

// Pointers of a pool end with their context. The memory that the pool keeps stays charged.
static void test_an_imported_pool_without_context(void)
{
	uint32_t life;

	begin(200 * mib, 0, 0, handle);
	life = vg_pool_life(process, pool);
	import(60 * mib);
	driver.held = 20 * mib;
	vg_pool_lifetime_context_ended(process, 0);
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 20 * mib);
	import(40 * mib);
	vg_pool_held_drop_pointer(process, pool, life, 60 * mib);
	CHECK_EQUAL(on_page(), 40 * mib);
}

// If a driver does not report an imported pool's memory, the pool may keep freed memory.
static void test_an_imported_pool_without_answers(void)
{
	begin(200 * mib, 0, 0, handle);
	driver.silent = true;
	import(60 * mib);
	import(40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pool_held_drop_pointer(process, pool, vg_pool_life(process, pool), 40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// Only the import's own call charges a new import. If the limit has no room, the import is refused
// and not charged. If the pool keeps the memory of a refused import, the memory is charged.
static void test_an_import_without_room(void)
{
	begin(100 * mib, 0, 0, handle);
	import(60 * mib);
	CHECK(vg_pool_imported(process, handle, 0) == pool);
	driver.held = 110 * mib;
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 60 * mib);
	CHECK_EQUAL(vg_pool_claim_pointer(&first, pool, 50 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(on_page(), 60 * mib);
	driver.held = 110 * mib; // a trim of the pool has no effect
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 110 * mib);
	driver.held = 0;
	vg_pool_held_refresh(process);
	CHECK_EQUAL(on_page(), 60 * mib);
}

int main(void)
{
	one_pool_driver();
	test_an_imported_pool();
	test_an_imported_pool_is_uncertain();
	test_an_imported_pool_without_context();
	test_an_imported_pool_without_answers();
	test_an_import_without_room();
	return 0;
}
