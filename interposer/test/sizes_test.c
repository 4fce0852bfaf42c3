// SPDX-License-Identifier: Apache-2.0

// This test covers the memory that an exportable pool lends. Calls of several threads end in any
// order, and drivers keep freed memory in different ways.

#include "memory/sizes.h"

#include "base/number.h"
#include "check.h"

static const uint64_t small = 4 * VG_MIB;
static const uint64_t large = 6 * VG_MIB;

static struct vg_pool pool;

static void begin(void)
{
	vg_sizes_release(&pool);
	pool.unlike = false;
}

static void take(uint64_t bytes)
{
	vg_sizes_ask(&pool, bytes);
	vg_sizes_end(&pool, bytes, true, false, true);
}

static void give(uint64_t bytes)
{
	vg_sizes_free(&pool, bytes);
	vg_sizes_freed(&pool, bytes, true);
}

static void take_lent(uint64_t bytes, bool grown)
{
	vg_sizes_end(&pool, bytes, true, true, grown);
}

static void test_sizes(void)
{
	begin();
	CHECK_EQUAL(vg_sizes_round(1), 2 * VG_MIB);
	take(small);
	take(large);
	CHECK(!vg_sizes_lend(&pool, small, small + large));
	give(small);
	CHECK(!vg_sizes_lend(&pool, large, small + large));
	CHECK(vg_sizes_lend(&pool, small, small + large));
	CHECK(!vg_sizes_lend(&pool, small, small + large));
	take_lent(small, false);
	CHECK(!vg_sizes_lend(&pool, small, small + large));
	give(small);
	CHECK(vg_sizes_lend(&pool, small, small + large));
}

// A call with a claim may take lent memory. The pool then grows for one of the two calls.
static void test_due(void)
{
	begin();
	take(small);
	give(small);
	CHECK(vg_sizes_lend(&pool, small, small));
	CHECK_EQUAL(vg_sizes_due(&pool), small);
	vg_sizes_ask(&pool, small);
	vg_sizes_end(&pool, small, true, false, false);
	CHECK_EQUAL(vg_sizes_due(&pool), 2 * small);
	take_lent(small, true);
	CHECK_EQUAL(vg_sizes_due(&pool), 2 * small);
	give(small);
}

// A call is lent nothing while a call with a claim may take the spare memory.
static void test_asked(void)
{
	begin();
	take(small);
	give(small);
	vg_sizes_ask(&pool, small);
	CHECK(!vg_sizes_lend(&pool, small, small));
	vg_sizes_end(&pool, small, false, false, false);
	CHECK(vg_sizes_lend(&pool, small, small));
}

// The driver has freed memory and reused it for another call before the free is counted.
static void test_free_under_way(void)
{
	begin();
	take(small);
	vg_sizes_free(&pool, small);
	vg_sizes_ask(&pool, small);
	vg_sizes_end(&pool, small, true, false, false);
	vg_sizes_freed(&pool, small, true);
	CHECK(!vg_sizes_lend(&pool, small, small));
	CHECK_EQUAL(vg_sizes_due(&pool), small);
	vg_sizes_free(&pool, small);
	vg_sizes_freed(&pool, small, false);
	CHECK(!vg_sizes_lend(&pool, small, small));
	give(small);
	CHECK(vg_sizes_lend(&pool, small, small));
}

// Some drivers return freed memory, reuse freed memory for other sizes, or do not reuse freed
// memory.
static void test_other_drivers(void)
{
	begin();
	take(large);
	give(large);
	CHECK(!vg_sizes_lend(&pool, large, 0));
	take(small);
	give(small);
	CHECK(!vg_sizes_lend(&pool, large, large));
	CHECK(vg_sizes_lend(&pool, large, small + large));
	take_lent(large, true);
	give(large);
	CHECK(!vg_sizes_lend(&pool, large, small + 2 * large));
}

static void test_emptied(void)
{
	begin();
	take(small);
	vg_sizes_free(&pool, small);
	vg_sizes_emptied(&pool);
	vg_sizes_freed(&pool, small, true);
	CHECK(!vg_sizes_lend(&pool, small, small));
	take(small);
	give(small);
	CHECK(vg_sizes_lend(&pool, small, small));
}

int main(void)
{
	test_sizes();
	test_due();
	test_asked();
	test_free_under_way();
	test_other_drivers();
	test_emptied();
	vg_sizes_release(&pool);
	return 0;
}
