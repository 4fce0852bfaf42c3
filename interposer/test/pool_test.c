// SPDX-License-Identifier: Apache-2.0

// What a pool is charged with, when threads ask about it and make it grow in an
// order that a busy machine brings about once in a million times. The driver here is
// a few lines that grow a pool as the real one does, and let other threads' steps
// happen while it is being asked.

#include "pool.h"

#include <string.h>

#include "check.h"
#include "fixture.h"
#include "orphan.h"
#include "process.h"
#include "reserve.h"
#include "slot.h"
#include "stand_in.h"

enum { step = 2 << 20 };

static const CUmemPoolProps on_device = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

static const uint64_t mib = UINT64_C(1) << 20;

// ---- a driver with one pool, which is the memory of graphs as well

static struct {
	uint64_t used;
	uint64_t held;
	bool silent;             // it answers nothing
	bool destroyed;          // the pool cannot be named any more
	bool strict;             // modes of capture cannot be changed
	int trims;
	int mode; // of this thread's captures
	void (*meanwhile)(void); // once, when the driver has made up its answer
} driver;

static CUmemoryPool const handle = (CUmemoryPool)(uintptr_t)0x1000;
static CUmemoryPool const other = (CUmemoryPool)(uintptr_t)0x2000; // of the same memory

static void driver_alloc(uint64_t bytes)
{
	driver.used += bytes;
	driver.held = vg_max(driver.held, vg_round_up(driver.used, step));
}

static void driver_trim(void)
{
	driver.held = vg_round_up(driver.used, step);
}

static CUresult driver_answer(bool held, void *value)
{
	void (*meanwhile)(void) = driver.meanwhile;

	if (driver.silent)
		return CUDA_ERROR_NOT_FOUND;
	memcpy(value, held ? &driver.held : &driver.used, sizeof driver.used);
	if (held && meanwhile) {
		driver.meanwhile = NULL;
		meanwhile();
	}
	return CUDA_SUCCESS;
}

static CUresult driver_pool_attribute(CUmemoryPool pool, int attribute, void *value)
{
	CHECK(pool == handle || pool == other);
	CHECK(!driver.destroyed);
	return driver_answer(attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, value);
}

static CUresult driver_graph_attribute(CUdevice device, int attribute, void *value)
{
	CHECK_EQUAL(device, 0);
	return driver_answer(attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, value);
}

static CUresult driver_trim_to(CUmemoryPool pool, size_t keep)
{
	CHECK(pool == handle && keep == 0 && driver.mode == CU_STREAM_CAPTURE_MODE_RELAXED);
	driver.trims++;
	driver_trim();
	return CUDA_SUCCESS;
}

static CUresult driver_trim_graphs(CUdevice device)
{
	CHECK_EQUAL(device, 0);
	driver_trim();
	return CUDA_SUCCESS;
}

static CUresult driver_capture_mode(int *mode)
{
	int before = driver.mode;

	if (driver.strict)
		return CUDA_ERROR_NOT_FOUND;
	driver.mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static CUresult driver_current(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

// ---- a process with some memory in that pool

static struct vg_state *state;
static struct vg_pool *pool;
static struct vg_claim first, second, third;

static uint64_t on_page(void)
{
	const struct vg_slot_device *own = vg_slot_device(&state->pages, (uint32_t)state->pages.slot, 0);

	return vg_load(&own->used) + vg_load(&own->pending);
}

static CUresult claim(struct vg_claim *to, uint64_t bytes)
{
	return vg_pool_claim(to, pool, VG_WAY_ASYNC, bytes);
}

// begin makes a process with this limit whose pool holds some memory and uses
// a part of it. The pool is the device's memory of graphs where that is asked for.
static void begin(uint64_t limit, uint64_t held, uint64_t used, CUmemoryPool which)
{
	struct vg_limits_device device = test_device(1, limit);

	memset(vg_state_new(), 0, sizeof *state); // as the child of a fork finds it
	state = test_process(&device, 1);
	memset(&driver, 0, sizeof driver);
	if (which)
		vg_pool_made(state, which, &on_device);
	pool = vg_pool_of(state, which, 0);
	CHECK_EQUAL(claim(&first, held), CUDA_SUCCESS);
	driver_alloc(held);
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	driver.used = used;
	CHECK_EQUAL(on_page(), held);
}

// ---- tests

// Two calls that have a claim use up what a pool has to spare, which was promised
// to a third. An answer that came later than theirs is applied before them.
static void settle_second(void);

static void refresh(void)
{
	vg_pools_refresh(state);
}

static void settle_second(void)
{
	driver.meanwhile = refresh;
	CHECK(vg_pool_settle(&second, CUDA_SUCCESS));
}

static void test_a_promise_outlives_claims_that_settle_late(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(claim(&second, 50 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(claim(&third, 40 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(third.borrowed, 40 * mib);
	driver_alloc(50 * mib);
	driver_alloc(50 * mib);
	driver.meanwhile = settle_second;
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 200 * mib);
	driver_alloc(40 * mib);
	CHECK_EQUAL(driver.held, 200 * mib);
	CHECK(vg_pool_settle(&third, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 200 * mib);
}

// What a pool has to spare is gone by the time that the answer arrives.
static void use_up(void)
{
	driver_alloc(40 * mib);
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
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
	CHECK(vg_pool_settle(&second, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 140 * mib);
}

// A pool that has returned what it had to spare takes whole steps again.
static void test_a_promise_is_of_whole_steps(void)
{
	begin(100 * mib, 100 * mib, 51 * mib + 900 * 1024, handle);
	CHECK_EQUAL(claim(&first, 300 * 1024), CUDA_SUCCESS);
	CHECK_EQUAL(first.borrowed, 300 * 1024);
	driver_trim();
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 54 * mib);
	driver_alloc(300 * 1024);
	CHECK_EQUAL(driver.held, 54 * mib);
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 54 * mib);
}

// A driver that grants memory and then does not say what its pool holds.
static void test_no_answer_frees_nothing(void)
{
	begin(200 * mib, 100 * mib, 100 * mib, handle);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	driver_alloc(50 * mib);
	driver.silent = true;
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 150 * mib);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	CHECK(vg_pool_settle(&first, CUDA_ERROR_NOT_FOUND));
	CHECK_EQUAL(on_page(), 150 * mib);
	driver.silent = false;
	driver.used = 10 * mib;
	driver_trim();
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 10 * mib);
}

// The memory that a graph took at an earlier launch is nobody else's during the
// next; and once it was another's, the graph must ask for it.
static void test_a_graph_keeps_what_it_owns(void)
{
	uint64_t epoch;

	begin(100 * mib, 100 * mib, 40 * mib, NULL);
	epoch = atomic_load(&state->graph_epoch);
	CHECK(vg_pool_keep(state, pool, 60 * mib, epoch));
	CHECK(claim(&first, 10 * mib) != CUDA_SUCCESS);
	driver_alloc(60 * mib);
	vg_pool_kept(state, pool, 60 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	driver.used = 40 * mib;
	epoch = atomic_load(&state->graph_epoch);
	CHECK_EQUAL(claim(&first, 10 * mib), CUDA_SUCCESS);
	CHECK(!vg_pool_keep(state, pool, 60 * mib, epoch));
	driver_alloc(10 * mib);
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 100 * mib);
}

// A question from before a graph's launch, answered after it, says too little.
static void launch_again(void)
{
	driver_alloc(60 * mib);
	vg_pool_kept(state, pool, 60 * mib);
}

static void test_a_graph_is_charged_for_what_it_takes_again(void)
{
	begin(100 * mib, 100 * mib, 40 * mib, NULL);
	CHECK(vg_pool_keep(state, pool, 60 * mib, atomic_load(&state->graph_epoch)));
	driver_trim();
	driver.meanwhile = launch_again;
	vg_pools_refresh(state);
	CHECK_EQUAL(driver.held, 100 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// ---- pools that are destroyed while in use

static void destroy(void)
{
	uint64_t used = 0;
	struct vg_pool *ending = vg_pool_ending(state, handle, &used);

	CHECK(ending == pool);
	CHECK_EQUAL(used, driver.used);
	vg_pool_ended(state, ending, used, CUDA_SUCCESS);
}

static CUresult driver_pointer_attribute(void *value, int attribute, CUdeviceptr address)
{
	size_t bytes = 60 * mib;

	CHECK_EQUAL(address, 1);
	if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
		memcpy(value, &handle, sizeof handle);
	else
		memcpy(value, &bytes, sizeof bytes);
	return CUDA_SUCCESS;
}

// The last piece of a destroyed pool is freed. Before that is counted, the driver has
// given the pool's handle to another, which has the record, and is destroyed as well.
static void test_a_piece_of_another_pool(void)
{
	struct vg_orphan orphan;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	destroy();
	orphan = vg_orphan_find(state, 1);
	CHECK(orphan.pool == pool);
	memset(&driver, 0, sizeof driver);
	vg_pool_made(state, handle, &on_device);
	CHECK_EQUAL(on_page(), 0);
	CHECK(vg_pool_of(state, handle, 0) == pool);
	CHECK_EQUAL(claim(&first, 60 * mib), CUDA_SUCCESS);
	driver_alloc(60 * mib);
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	destroy();
	vg_orphan_freed(state, &orphan);
	CHECK_EQUAL(on_page(), 60 * mib);
	orphan = vg_orphan_find(state, 1);
	vg_orphan_freed(state, &orphan);
	CHECK_EQUAL(on_page(), 0);
}

// While a pool is being destroyed, another thread looks for pieces of destroyed pools.
static void test_a_pool_that_is_being_destroyed(void)
{
	struct vg_pool *ending;
	uint64_t used = 0;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	destroy();
	memset(&driver, 0, sizeof driver);
	vg_pool_made(state, other, &on_device);
	pool = vg_pool_of(state, other, 0);
	CHECK_EQUAL(claim(&first, 40 * mib), CUDA_SUCCESS);
	driver_alloc(40 * mib);
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	CHECK_EQUAL(on_page(), 140 * mib);
	driver.used = 0;
	ending = vg_pool_ending(state, other, &used);
	CHECK(ending == pool);
	vg_orphans_look(state);
	CHECK_EQUAL(on_page(), 140 * mib);
	vg_pool_ended(state, ending, used, CUDA_SUCCESS);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// Nobody asks the driver about a pool that was destroyed, as it may be gone.
static void test_a_destroyed_pool_is_left_alone(void)
{
	uint64_t held = 7;

	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK(vg_pools_held(state, 0, &held));
	CHECK_EQUAL(held, 100 * mib);
	CHECK(vg_pools_held(state, 1, &held));
	CHECK_EQUAL(held, 0);
	destroy();
	driver.destroyed = true;
	vg_pools_refresh(state);
	CHECK(!vg_pools_held(state, 0, &held));
	vg_pools_trim(state, 0);
	CHECK_EQUAL(driver.trims, 0);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// ---- pools that have more than they use

static void test_trimming(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK(!vg_pools_trim(state, 1)); // it has no pool on that GPU
	CHECK_EQUAL(driver.trims, 0);
	CHECK(vg_pools_trim(state, 0));
	CHECK_EQUAL(driver.trims, 1);
	CHECK_EQUAL(driver.mode, 0); // as before
	CHECK_EQUAL(on_page(), 60 * mib);
	// If this thread's mode cannot be changed, trimming might break a capture.
	driver.strict = true;
	driver.held = 100 * mib;
	vg_pools_trim(state, 0);
	CHECK_EQUAL(driver.trims, 1);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// What graphs held at an earlier launch they may not hold any more once their memory was trimmed.
static void test_trimming_the_memory_of_graphs(void)
{
	uint64_t epoch;

	begin(200 * mib, 100 * mib, 60 * mib, NULL);
	epoch = atomic_load(&state->graph_epoch);
	CHECK(vg_pools_trim(state, 0));
	CHECK_EQUAL(on_page(), 60 * mib);
	CHECK(!vg_pool_keep(state, pool, 40 * mib, epoch));
}

// Before anything is refused, pools give back what they do not use.
static void test_trimming_before_a_refusal(void)
{
	begin(100 * mib, 100 * mib, 60 * mib, handle);
	CHECK_EQUAL(vg_claim_on(&second, 0, VG_WAY_ARRAY, 40 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(driver.trims, 1);
	CHECK_EQUAL(on_page(), 100 * mib);
	CHECK_EQUAL(vg_claim_on(&third, 0, VG_WAY_ARRAY, 1), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(vg_claim_on(&third, 0, VG_WAY_ARRAY, 101 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(driver.trims, 2); // not for what never has room
	vg_claim_void(&second);
}

// Asking what a pool holds takes nothing from what a call has claimed.
static void test_asking_during_a_call(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	CHECK_EQUAL(claim(&first, 50 * mib), CUDA_SUCCESS);
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 150 * mib);
	CHECK(vg_pool_settle(&first, CUDA_ERROR_NOT_FOUND));
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
	vg_pool_made(state, other, &properties);
	host = vg_pool_find(state, 0, other);
	CHECK(host && host->on_host);
	CHECK_EQUAL(host->device, 0);
	CHECK_EQUAL(state->shareable_pools, 0);
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pool_ended(state, vg_pool_ending(state, other, &(uint64_t){0}), 0, CUDA_SUCCESS);
	CHECK(!host->in_use);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// Managed memory may move to the GPU, wherever it is at first.
static void test_a_pool_of_managed_memory(void)
{
	const CUmemPoolProps properties = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST}};

	begin(200 * mib, 0, 0, handle);
	vg_pool_made(state, other, &properties);
	CHECK(!vg_pool_find(state, 0, other)->on_host);
}

static void test_a_pool_that_can_be_exported(void)
{
	CUmemPoolProps properties = on_device;

	properties.handleTypes = 1;
	begin(200 * mib, 0, 0, handle);
	destroy();
	vg_pool_made(state, handle, &properties);
	pool = vg_pool_of(state, handle, 0);
	CHECK_EQUAL(state->shareable_pools, 1);
	CHECK_EQUAL(claim(&first, 4 * mib), CUDA_SUCCESS);
	driver_alloc(4 * mib);
	CHECK(vg_pool_settle(&first, CUDA_SUCCESS));
	CHECK(pool->sizes);
	driver.used = 0;
	destroy();
	CHECK(!pool->sizes);
	CHECK_EQUAL(state->shareable_pools, 0);
	CHECK_EQUAL(on_page(), 0);
}

// ---- pools whose context has ended

static void test_a_destroyed_pool_ends_with_its_context(void)
{
	begin(200 * mib, 100 * mib, 60 * mib, handle);
	destroy();
	vg_pools_ended(state, 1);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pools_ended(state, 0);
	CHECK_EQUAL(on_page(), 0);
}

// ---- pools of other processes

static void import(uint64_t bytes)
{
	CHECK(vg_pool_imported(state, handle, 0) == pool);
	CHECK_EQUAL(vg_pool_claim_pointer(&first, pool, bytes), CUDA_SUCCESS);
	CHECK(vg_pool_settle_pointer(&first, bytes));
}

// An imported pool is charged with its pointers at least, and with what it keeps of them.
static void test_an_imported_pool(void)
{
	uint32_t life;

	begin(200 * mib, 0, 0, handle);
	life = vg_pool_life(state, pool);
	import(60 * mib);
	CHECK_EQUAL(on_page(), 60 * mib);
	driver.held = 100 * mib;
	import(40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pool_drop_pointer(state, pool, life, 40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	driver.held = 0;
	vg_pool_drop_pointer(state, pool, life + 1, 60 * mib);
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 60 * mib);
	vg_pool_drop_pointer(state, pool, life, 60 * mib);
	CHECK_EQUAL(on_page(), 0);
}

static uint64_t uncertain(void)
{
	return state->corrections[0].uncertain;
}

// What an imported pool is charged with, its exporter may hold by the agent's measure: so it is
// uncertain, from the import to the end, and as much as is charged.
static void test_an_imported_pool_is_uncertain(void)
{
	begin(200 * mib, 0, 0, handle);
	import(60 * mib);
	CHECK_EQUAL(uncertain(), 60 * mib);
	driver.held = 100 * mib;
	vg_pools_refresh(state);
	CHECK_EQUAL(uncertain(), 100 * mib);
	driver.held = 0;
	vg_pool_drop_pointer(state, pool, vg_pool_life(state, pool), 60 * mib);
	CHECK_EQUAL(uncertain(), 0);

	begin(200 * mib, 100 * mib, 60 * mib, handle); // one that is known already
	CHECK_EQUAL(uncertain(), 0);
	import(40 * mib);
	CHECK_EQUAL(uncertain(), 100 * mib);
	import(20 * mib);
	CHECK_EQUAL(uncertain(), 100 * mib);
	vg_pool_drop_pointer(state, pool, vg_pool_life(state, pool), 60 * mib);
	CHECK_EQUAL(uncertain(), 100 * mib);
	driver.used = 0;
	destroy();
	CHECK_EQUAL(uncertain(), 0);
	CHECK_EQUAL(on_page(), 0);
}

// Pointers of a pool end with their context. What the pool keeps of them stays charged.
static void test_an_imported_pool_without_context(void)
{
	uint32_t life;

	begin(200 * mib, 0, 0, handle);
	life = vg_pool_life(state, pool);
	import(60 * mib);
	driver.held = 20 * mib;
	vg_pools_ended(state, 0);
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 20 * mib);
	import(40 * mib);
	vg_pool_drop_pointer(state, pool, life, 60 * mib);
	CHECK_EQUAL(on_page(), 40 * mib);
}

// A driver that does not say what an imported pool holds may keep what was freed of it.
static void test_an_imported_pool_without_answers(void)
{
	begin(200 * mib, 0, 0, handle);
	driver.silent = true;
	import(60 * mib);
	import(40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
	vg_pool_drop_pointer(state, pool, vg_pool_life(state, pool), 40 * mib);
	CHECK_EQUAL(on_page(), 100 * mib);
}

// What was imported just now is charged by the call that imported it alone, and not if there
// is no room: but if the pool keeps it, it is charged nevertheless.
static void test_an_import_without_room(void)
{
	begin(100 * mib, 0, 0, handle);
	import(60 * mib);
	CHECK(vg_pool_imported(state, handle, 0) == pool);
	driver.held = 110 * mib;
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 60 * mib);
	CHECK_EQUAL(vg_pool_claim_pointer(&first, pool, 50 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(on_page(), 60 * mib);
	driver.held = 110 * mib; // trimming it has no effect
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 110 * mib);
	driver.held = 0;
	vg_pools_refresh(state);
	CHECK_EQUAL(on_page(), 60 * mib);
}

int main(void)
{
	DRIVER(cuPointerGetAttribute, driver_pointer_attribute);
	DRIVER(cuMemPoolGetAttribute, driver_pool_attribute);
	DRIVER(cuDeviceGetGraphMemAttribute, driver_graph_attribute);
	DRIVER(cuMemPoolTrimTo, driver_trim_to);
	DRIVER(cuDeviceGraphMemTrim, driver_trim_graphs);
	DRIVER(cuThreadExchangeStreamCaptureMode, driver_capture_mode);
	DRIVER(cuCtxGetDevice, driver_current);
	test_a_promise_outlives_claims_that_settle_late();
	test_an_old_answer_promises_nothing();
	test_a_promise_is_of_whole_steps();
	test_no_answer_frees_nothing();
	test_a_graph_keeps_what_it_owns();
	test_a_graph_is_charged_for_what_it_takes_again();
	test_a_piece_of_another_pool();
	test_a_pool_that_is_being_destroyed();
	test_a_destroyed_pool_is_left_alone();
	test_trimming();
	test_trimming_the_memory_of_graphs();
	test_trimming_before_a_refusal();
	test_asking_during_a_call();
	test_a_pool_on_the_host();
	test_a_pool_of_managed_memory();
	test_a_pool_that_can_be_exported();
	test_a_destroyed_pool_ends_with_its_context();
	test_an_imported_pool();
	test_an_imported_pool_is_uncertain();
	test_an_imported_pool_without_context();
	test_an_imported_pool_without_answers();
	test_an_import_without_room();
	return 0;
}
