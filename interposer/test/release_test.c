// SPDX-License-Identifier: Apache-2.0

// This test covers the release of memory when it is freed, and when its context ends.

#include "memory/release.h"

#include <stdlib.h>

#include "api/context.h"
#include "driver/handle.h"
#include "memory/correction.h"
#include "one_claim.h"
#include "pages/reserve.h"

static CUcontext const context = (CUcontext)(uintptr_t)0x1000;

// The release of memory also reverses the changes of other sums, which depend on the kind of
// memory.
static void test_kinds(void)
{
	const struct {
		enum vg_kind kind;
		uint32_t way;
		bool estimate, is_context, uncertain;
	} cases[] = {
		{VG_ARRAY, VG_WAY_ARRAY, false, false, false},
		{VG_PHYSICAL, VG_WAY_VMM, false, false, false},
		{VG_MODULE, VG_WAY_MODULE, true, false, false},
		{VG_CODE, VG_WAY_MODULE, true, false, false},
		{VG_CONTEXT, VG_WAY_CONTEXT, true, true, false},
		{VG_PRIMARY, VG_WAY_CONTEXT, true, true, false},
		{VG_GREEN, VG_WAY_CONTEXT, true, true, false},
		{VG_IMPORT, VG_WAY_IMPORT, false, false, true},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct vg_correction *correction;

		begin();
		correction = &state->corrections[0];
		charge(cases[i].kind, cases[i].way, 5, 0, 30 * mib);
		CHECK_EQUAL(own()->used, 30 * mib);
		CHECK_EQUAL(correction->estimated, cases[i].estimate ? 30 * mib : 0);
		CHECK_EQUAL(correction->contexts, cases[i].is_context);
		CHECK_EQUAL(own()->context_bytes, cases[i].is_context ? 30 * mib : 0);
		CHECK_EQUAL(correction->uncertain, cases[i].uncertain ? 30 * mib : 0);
		own()->context_bytes += 7; // of another context
		vg_release(state, vg_table_take(&state->table, cases[i].kind, 5));
		CHECK_EQUAL(own()->used, 0);
		CHECK_EQUAL(correction->estimated, 0);
		CHECK_EQUAL(correction->contexts, 0);
		CHECK_EQUAL(own()->context_bytes, 7);
		CHECK_EQUAL(correction->uncertain, 0);
	}
}

// file adds an already charged entry to the table.
static void file(enum vg_kind kind, uint64_t key, uint64_t owner, uint64_t count)
{
	struct vg_entry *entry = calloc(1, sizeof *entry);

	CHECK(entry);
	*entry = (struct vg_entry){.kind = kind, .key = key, .bytes = 10 * mib, .context = owner, .count = count};
	vg_reserve_settle(&state->pages, 0, 0, 10 * mib);
	vg_table_put(&state->table, entry);
}

// An empty granule is retained for later allocations, and counts as retained until it is released.
static void test_a_granule_that_was_kept(void)
{
	begin();
	file(VG_GRANULE, 5, 0, 0);
	atomic_store(&state->retained[0], 30 * mib);
	vg_release(state, vg_table_take(&state->table, VG_GRANULE, 5));
	CHECK_EQUAL(state->retained[0], 20 * mib);
	file(VG_ARRAY, 5, 0, 0);
	vg_release(state, vg_table_take(&state->table, VG_ARRAY, 5));
	CHECK_EQUAL(state->retained[0], 20 * mib);
}

// Memory without an entry may belong to a pool, so that the pools' held bytes become stale.
static void test_an_unknown_address_is_freed(void)
{
	begin();
	vg_release_finish(state, NULL, CUDA_SUCCESS);
	CHECK_EQUAL(state->stale_pools, 1);
	vg_release_finish(state, NULL, CUDA_SUCCESS);
	CHECK_EQUAL(state->stale_pools, 1);
}

// The end of a context removes its entries, except for granules in use.
static void test_the_end_of_a_context(void)
{
	const uint64_t key = vg_handle_key(context);
	struct vg_entry *entries;
	struct vg_entry copy;

	begin();
	charge(VG_CONTEXT, VG_WAY_CONTEXT, key, 0, 20 * mib);
	file(VG_ARRAY, 1, key, 0);
	file(VG_ARRAY, 2, 0x2000, 0);      // another context's
	file(VG_ARRAY, 3, 0, 0);           // of another context
	file(VG_ARRAY, key, 0, 0);         // of no context
	file(VG_GRANULE, 4, key, 1);       // in use
	file(VG_GRANULE, 5, key, 0);
	CHECK_EQUAL(own()->used, 80 * mib);
	CHECK(!vg_context_take(state, NULL));

	entries = vg_context_take(state, context);
	CHECK(entries && !vg_table_get(&state->table, VG_CONTEXT, key, &copy));
	vg_context_keep(state, NULL, entries); // the driver did not end the context
	CHECK(vg_table_get(&state->table, VG_CONTEXT, key, &copy) && vg_table_get(&state->table, VG_ARRAY, 1, &copy));
	CHECK_EQUAL(own()->used, 80 * mib);

	vg_context_drop(state, context, vg_context_take(state, context));
	CHECK_EQUAL(own()->used, 40 * mib);
	CHECK_EQUAL(own()->context_bytes, 0);
	CHECK(!vg_table_get(&state->table, VG_ARRAY, 1, &copy) && !vg_table_get(&state->table, VG_GRANULE, 5, &copy));
	CHECK(vg_table_get(&state->table, VG_ARRAY, 2, &copy) && vg_table_get(&state->table, VG_ARRAY, 3, &copy));
	CHECK(vg_table_get(&state->table, VG_ARRAY, key, &copy) && vg_table_get(&state->table, VG_GRANULE, 4, &copy));
}

static void test_before_the_start(void)
{
	CHECK(!vg_release_begin(NULL, VG_ARRAY, 5));
	vg_release_finish(NULL, NULL, CUDA_SUCCESS);
}

int main(void)
{
	test_before_the_start();
	test_kinds();
	test_a_granule_that_was_kept();
	test_an_unknown_address_is_freed();
	test_the_end_of_a_context();
	end();
	return 0;
}
