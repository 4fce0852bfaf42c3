// SPDX-License-Identifier: Apache-2.0

// The records of pools: where they lie, and that there are only so many.

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fixture.h"
#include "pool.h"
#include "process.h"
#include "slot.h"
#include "stand_in.h"

static const CUmemPoolProps on_device = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

static CUmemoryPool const one = (CUmemoryPool)(uintptr_t)0x1000;
static CUmemoryPool const two = (CUmemoryPool)(uintptr_t)0x2000;

static struct vg_state *state;

// driver_attribute: the pools are empty.
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
	struct vg_limits_device device = test_device(1, 1 << 30);

	state = test_process(&device, 1);
}

static void destroy(CUmemoryPool handle)
{
	uint64_t used = 0;
	struct vg_pool *pool = vg_pool_ending(state, handle, &used);

	CHECK(pool);
	vg_pool_ended(state, pool, used, CUDA_SUCCESS);
}

// A pool takes the place of an earlier one, and those behind it are still found.
static void test_places(void)
{
	struct vg_pool *first, *second;

	vg_pool_made(state, one, &on_device);
	vg_pool_made(state, two, &on_device);
	first = vg_pool_of(state, one, 0);
	second = vg_pool_of(state, two, 0);
	CHECK(first && second && first != second);
	destroy(one);
	CHECK(vg_pool_find(state, 0, two) == second);
	CHECK(!vg_pool_find(state, 0, one));
	vg_pool_made(state, one, &on_device);
	CHECK(vg_pool_of(state, one, 0) == first);
	destroy(two);
	CHECK_EQUAL(state->pools_end, 1);
	destroy(one);
	CHECK_EQUAL(state->pools_end, 0);
}

// The driver gives the handle of a destroyed pool to a new one before the interposer has noted the end.
static void test_handle_of_an_ending_pool(void)
{
	struct vg_pool *ending, *next;
	uint64_t used = 0;

	vg_pool_made(state, one, &on_device);
	ending = vg_pool_ending(state, one, &used);
	vg_pool_made(state, one, &on_device);
	next = vg_pool_of(state, one, 0);
	CHECK(ending && next && next != ending);
	vg_pool_ended(state, ending, 512, CUDA_SUCCESS);
	CHECK(!ending->in_use);
	CHECK_EQUAL(state->orphans, 0);
	destroy(one);
	CHECK_EQUAL(state->pools_end, 0);
}

// More pools than can be followed are refused by one line.
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
	test_handle_of_an_ending_pool();
	test_too_many();
	return 0;
}
