// SPDX-License-Identifier: Apache-2.0

// This test covers the records of pools, their places, and their limited number.

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "memory/pool.h"
#include "memory/pool_lifetime.h"
#include "process.h"
#include "stand_in.h"

static const CUmemPoolProps on_device = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

static CUmemoryPool const one = (CUmemoryPool)(uintptr_t)0x1000;
static CUmemoryPool const two = (CUmemoryPool)(uintptr_t)0x2000;

static struct vg_state *state;

// driver_attribute reports that the pools are empty.
static CUresult driver_attribute(CUmemoryPool pool, int attribute, void *value)
{
	const uint64_t nothing = 0;

	CHECK((pool == one || pool == two) && attribute);
	memcpy(value, &nothing, sizeof nothing);
	return CUDA_SUCCESS;
}

static CUresult driver_count(int *count)
{
	*count = 0;
	return CUDA_SUCCESS;
}

static void begin(void)
{
	const struct vg_limits_device devices[] = {test_device(1, 1 << 30), test_device(2, 1 << 30)};

	state = test_process(devices, 2);
}

static void destroy(CUmemoryPool handle)
{
	uint64_t used = 0;
	struct vg_pool *pool = vg_pool_lifetime_ending(state, handle, &used);

	CHECK(pool);
	vg_pool_lifetime_ended(state, pool, used, CUDA_SUCCESS);
}

// A pool takes the place of an earlier pool, and later records are still found.
static void test_places(void)
{
	struct vg_pool *first, *second;

	vg_pool_lifetime_made(state, one, &on_device);
	vg_pool_lifetime_made(state, two, &on_device);
	first = vg_pool_of(state, one, 0);
	second = vg_pool_of(state, two, 0);
	CHECK(first && second && first != second);
	destroy(one);
	CHECK(vg_pool_find(state, 0, two) == second);
	CHECK(!vg_pool_find(state, 0, one));
	vg_pool_lifetime_made(state, one, &on_device);
	CHECK(vg_pool_of(state, one, 0) == first);
	destroy(two);
	CHECK_EQUAL(state->pools_end, 1);
	destroy(one);
	CHECK_EQUAL(state->pools_end, 0);
}

static CUmemoryPool numbered(uintptr_t i)
{
	return (CUmemoryPool)(0x1000 * i);
}

// drop ends a pool like a program that destroys the pool.
static void drop(struct vg_pool *pool)
{
	pool->destroyed = true;
	vg_pool_lifetime_ended(state, pool, 0, CUDA_SUCCESS);
}

// All freed records are reused, in any order.
static void test_places_are_used_again(void)
{
	const int freed[] = {3, 0, 2}, count = 6;

	for (int i = 0; i < count; i++)
		vg_pool_lifetime_made(state, numbered(10 + (uintptr_t)i), &on_device);
	for (int i = 0; i < count; i++)
		CHECK(vg_pool_find(state, 0, numbered(10 + (uintptr_t)i)) == &state->pools[i]);
	for (size_t i = 0; i < sizeof freed / sizeof *freed; i++)
		drop(&state->pools[freed[i]]);
	for (uintptr_t i = 0; i < 4; i++)
		vg_pool_lifetime_made(state, numbered(20 + i), &on_device);
	CHECK(vg_pool_find(state, 0, numbered(20)) == &state->pools[0]);
	CHECK(vg_pool_find(state, 0, numbered(21)) == &state->pools[2]);
	CHECK(vg_pool_find(state, 0, numbered(22)) == &state->pools[3]);
	CHECK(vg_pool_find(state, 0, numbered(23)) == &state->pools[6]);
	CHECK_EQUAL(state->pools_end, 7);
	while (state->pools_end)
		drop(&state->pools[state->pools_end - 1]);
}

// The handle identifies a pool, and the GPU identifies graph memory.
static void test_who_is_who(void)
{
	struct vg_pool *first = vg_pool_of(state, NULL, 0), *second = vg_pool_of(state, NULL, 1);
	struct vg_pool *third;

	vg_pool_lifetime_made(state, one, &on_device);
	third = vg_pool_find(state, 1, one);
	CHECK(first && second && third && first != second && first != third && second != third);
	CHECK(vg_pool_of(state, NULL, 0) == first);
	CHECK(vg_pool_of(state, NULL, 1) == second);
	CHECK(vg_pool_of(state, one, 0) == third);
	CHECK_EQUAL(first->device, 0);
	CHECK_EQUAL(second->device, 1);
	CHECK(!vg_pool_of(state, NULL, 2)); // a GPU outside the container
	while (state->pools_end)
		drop(&state->pools[state->pools_end - 1]);
}

// The driver reuses the handle of a destroyed pool for a new pool before the interposer has
// recorded the destruction.
static void test_handle_of_an_ending_pool(void)
{
	struct vg_pool *ending, *next;
	uint64_t used = 0;

	vg_pool_lifetime_made(state, one, &on_device);
	ending = vg_pool_lifetime_ending(state, one, &used);
	vg_pool_lifetime_made(state, one, &on_device);
	next = vg_pool_of(state, one, 0);
	CHECK(ending && next && next != ending);
	vg_pool_lifetime_ended(state, ending, 512, CUDA_SUCCESS);
	CHECK(!ending->in_use);
	CHECK_EQUAL(state->destroyed_pools, 0);
	destroy(one);
	CHECK_EQUAL(state->pools_end, 0);
}

// Pools beyond the limit of records are refused, with one log line.
static void test_too_many(void)
{
	int saved = dup(STDERR_FILENO);
	FILE *errors = tmpfile();
	char line[256] = "";

	for (int i = 0; i < vg_max_pools; i++)
		state->pools[i].in_use = true;
	state->pools_free = state->pools_end = vg_max_pools;
	CHECK(errors && dup2(fileno(errors), STDERR_FILENO) >= 0);
	CHECK(!vg_pool_of(state, one, 0));
	CHECK(!vg_pool_of(state, two, 0));
	CHECK(dup2(saved, STDERR_FILENO) >= 0);
	rewind(errors);
	CHECK(fgets(line, sizeof line, errors));
	CHECK(strstr(line, "refused memory of a memory pool: this process has 16384 pools"));
	CHECK(!fgets(line, sizeof line, errors));
	fclose(errors);
	close(saved);
}

int main(void)
{
	DRIVER(cuMemPoolGetAttribute, driver_attribute);
	DRIVER(cuDeviceGetCount, driver_count);
	begin();
	test_places();
	test_places_are_used_again();
	test_who_is_who();
	test_handle_of_an_ending_pool();
	test_too_many();
	return 0;
}
