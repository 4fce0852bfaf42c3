// SPDX-License-Identifier: Apache-2.0

// This test covers the charge of pools that are created and destroyed, while in use too, and of
// pools of each kind.

#include "memory/pool_lifetime.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/mutex.h"
#include "memory/pool_destroyed.h"
#include "memory/pool_held.h"
#include "one_pool.h"
#include "stand_in.h"

// ---- streams, which reach their events in the order of creation

static struct {
	uintptr_t created;
	uintptr_t reached;
	int left;          // events that are not destroyed
	int per_thread;    // events of threads' own default streams
	CUresult creation;
	CUresult recording;
} events;

static CUresult driver_event(CUevent *event, unsigned flags)
{
	CHECK_EQUAL(flags, CU_EVENT_DISABLE_TIMING);
	if (events.creation)
		return events.creation;
	*event = (CUevent)++events.created;
	events.left++;
	return CUDA_SUCCESS;
}

static CUresult driver_record(CUevent event, CUstream stream)
{
	CHECK((uintptr_t)event == events.created && !stream);
	return events.recording;
}

static CUresult driver_record_per_thread(CUevent event, CUstream stream)
{
	events.per_thread++;
	return driver_record(event, stream);
}

static CUresult driver_query(CUevent event)
{
	return (uintptr_t)event > events.reached ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult driver_drop(CUevent event)
{
	CHECK((uintptr_t)event <= events.created);
	events.left--;
	return CUDA_SUCCESS;
}

// ---- two GPUs, of which the container has the first; `other` is the default pool of that

static CUresult driver_count(int *count)
{
	*count = 2;
	return CUDA_SUCCESS;
}

static CUresult driver_default_pool(CUmemoryPool *of, CUdevice device)
{
	*of = device == 0 ? other : NULL;
	return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// ---- tests

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

// The driver could not destroy the pool: it remains as it was.
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

// begin_freeing makes a process whose pool was destroyed while two pieces of 60 MiB were in use.
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

// Such a pool stays charged until its context ends.
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

// ---- which pool a handle names

static void test_whose_pool_it_is(void)
{
	begin(200 * mib, 0, 0, handle);
	CHECK(vg_pool_of(process, handle, 1) == pool);
	CHECK(vg_pool_follow(process, 0, handle) == pool);
	pool = vg_pool_of(process, other, 1); // whatever the current GPU is
	CHECK(pool && pool->handle == other);
	CHECK_EQUAL(pool->ordinal, 0);
	CHECK_EQUAL(pool->device, 0);
	CHECK(!vg_pool_of(process, (CUmemoryPool)(uintptr_t)0x3000, 1)); // of the other GPU
	CHECK(!vg_pool_of(process, NULL, 1));
	pool = vg_pool_of(process, NULL, 0); // the memory of graphs
	CHECK(pool && !pool->handle);
	CHECK(vg_pool_of(process, NULL, 0) == pool);
}

// A pool is asked again while it holds more than it uses.
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

// ---- other threads

static struct vg_pool_piece last_piece;

static void call_made(void)
{
	vg_pool_lifetime_made(process, other, &on_device);
}

static void call_opened(void)
{
	vg_pool_lifetime_opened(process, other);
}

static void call_ending(void)
{
	CHECK(vg_pool_lifetime_ending(process, handle, &(uint64_t){0}) == pool);
}

static void call_ended(void)
{
	vg_pool_lifetime_ended(process, pool, 0, CUDA_ERROR_NOT_FOUND);
}

static void call_context_ended(void)
{
	vg_pool_lifetime_context_ended(process, 0);
}

static void call_of(void)
{
	CHECK(vg_pool_of(process, other, 0));
}

static void call_sum(void)
{
	vg_pool_held_sum(process, 0, &(uint64_t){0});
}

static void call_drop_pointer(void)
{
	vg_pool_held_drop_pointer(process, pool, 0, 1);
}

static void call_refresh(void)
{
	vg_pool_held_refresh(process);
}

static void call_find(void)
{
	CHECK(vg_pool_destroyed_find(process, 1).pool == pool);
}

static void call_freed(void)
{
	vg_pool_destroyed_freed(process, &last_piece);
}

static void call_freed_in(void)
{
	vg_pool_destroyed_freed_in(process, &last_piece, NULL, false);
}

static void (*call)(void);
static atomic_bool over;

static void *run_call(void *unused)
{
	call();
	atomic_store(&over, true);
	return unused;
}

// No record of a pool changes while another thread works on the records.
static void test_other_threads_are_waited_for(void)
{
	const struct {
		void (*call)(void);
		bool destroyed; // the pool
	} cases[] = {
		{call_made, false}, {call_opened, false}, {call_ending, false}, {call_ended, false}, {call_context_ended, false},
		{call_of, false}, {call_sum, false}, {call_drop_pointer, false}, {call_refresh, false},
		{call_find, true}, {call_freed, true}, {call_freed_in, true},
	};
	const struct timespec nap = {.tv_nsec = 10000000};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		pthread_t thread;

		memset(&events, 0, sizeof events);
		begin(200 * mib, 120 * mib, 120 * mib, handle);
		if (cases[i].destroyed) {
			destroy();
			last_piece = vg_pool_destroyed_find(process, 1);
		}
		call = cases[i].call;
		atomic_store(&over, false);
		vg_mutex_lock(&process->pool_mutex);
		CHECK_EQUAL(pthread_create(&thread, NULL, run_call, NULL), 0);
		nanosleep(&nap, NULL);
		CHECK(!atomic_load(&over));
		vg_mutex_unlock(&process->pool_mutex);
		CHECK_EQUAL(pthread_join(thread, NULL), 0);
		CHECK(atomic_load(&over));
		events.reached = events.created;
		vg_pool_destroyed_look(process);
		CHECK_EQUAL(events.left, 0);
	}
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
	DRIVER(cuEventCreate, driver_event);
	DRIVER(cuEventRecord, driver_record);
	DRIVER(cuEventRecord_ptsz, driver_record_per_thread);
	DRIVER(cuEventQuery, driver_query);
	DRIVER(cuEventDestroy_v2, driver_drop);
	DRIVER(cuDeviceGetCount, driver_count);
	DRIVER(cuDeviceGetDefaultMemPool, driver_default_pool);
	test_a_piece_of_another_pool();
	test_a_pool_that_is_being_destroyed();
	test_a_destroyed_pool_is_left_alone();
	test_a_pool_that_is_not_destroyed();
	test_frees_that_streams_reach();
	test_a_free_that_cannot_be_followed();
	test_a_handle_is_reused_before_a_free();
	test_captures_are_left_alone();
	test_whose_pool_it_is();
	test_stale_pools_are_asked();
	test_other_threads_are_waited_for();
	test_a_pool_on_the_host();
	test_a_pool_of_managed_memory();
	test_a_pool_that_can_be_exported();
	test_a_destroyed_pool_ends_with_its_context();
	return 0;
}
