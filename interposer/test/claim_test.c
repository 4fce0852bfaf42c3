// SPDX-License-Identifier: Apache-2.0

// This test covers single claims: the reservation before the driver's call and the charge after the
// call. release_test.c covers the release of freed memory. claims_test.c covers many claims at
// once.

#include "memory/claim.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "memory/audit.h"
#include "memory/correction.h"
#include "memory/release.h"
#include "one_claim.h"
#include "reserve.h"
#include "stand_in.h"

// ---- a driver with three GPUs, of which the container has the first

static struct {
	CUresult answer;
	CUdevice current;
} driver;

static CUresult driver_count(int *count)
{
	*count = 3;
	return driver.answer;
}

static CUresult driver_device(CUdevice *device)
{
	*device = driver.current;
	return driver.answer;
}

static void check_over(void)
{
	CHECK(!claim.open && !claim.entry);
	CHECK_EQUAL(claim.bytes, 0);
	CHECK_EQUAL(own()->pending, 0);
	CHECK_EQUAL(under_way(), 0);
}

// ---- tests

static void test_a_claim_is_held_then_charged_then_released(void)
{
	struct vg_entry *entry, copy;

	begin();
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ARRAY, 30 * mib), CUDA_SUCCESS);
	CHECK(claim.open && claim.entry);
	CHECK_EQUAL(own()->pending, 30 * mib);
	CHECK_EQUAL(under_way(), 1);
	vg_claim_settle(&claim, VG_ARRAY, 5, 9);
	check_over();
	CHECK_EQUAL(own()->used, 30 * mib);
	CHECK(vg_table_get(&state->table, VG_ARRAY, 5, &copy));
	CHECK_EQUAL(copy.device, 0);
	CHECK_EQUAL(copy.bytes, 30 * mib);
	CHECK_EQUAL(copy.context, 9);

	entry = vg_release_begin(state, VG_ARRAY, 5);
	CHECK(entry && !vg_table_get(&state->table, VG_ARRAY, 5, &copy));
	CHECK_EQUAL(under_way(), 1);
	vg_release_finish(state, entry, CUDA_ERROR_NOT_FOUND); // the memory stays allocated
	CHECK(vg_table_get(&state->table, VG_ARRAY, 5, &copy));
	CHECK_EQUAL(own()->used, 30 * mib);
	CHECK_EQUAL(under_way(), 0);

	entry = vg_release_begin(state, VG_ARRAY, 5);
	vg_release_finish(state, entry, CUDA_SUCCESS);
	CHECK_EQUAL(own()->used, 0);
	CHECK_EQUAL(under_way(), 0);
	CHECK(!vg_release_begin(state, VG_ARRAY, 5));
	CHECK_EQUAL(under_way(), 0);
}

// Pools and graphs have records, so that claims for their memory have no entry.
static void test_which_claims_have_an_entry(void)
{
	const struct {
		uint32_t way;
		bool filed;
	} cases[] = {
		{VG_WAY_NONE, false}, {VG_WAY_ASYNC, false}, {VG_WAY_POOL, false}, {VG_WAY_GRAPH, false},
		{VG_WAY_CONTEXT, true}, {VG_WAY_ALLOC, true}, {VG_WAY_PITCH, true}, {VG_WAY_MANAGED, true},
		{VG_WAY_ARRAY, true}, {VG_WAY_MIPMAP, true}, {VG_WAY_VMM, true}, {VG_WAY_IMPORT, true}, {VG_WAY_MODULE, true},
	};

	begin();
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		CHECK_EQUAL(vg_claim_on(&claim, 0, cases[i].way, mib), CUDA_SUCCESS);
		CHECK_EQUAL(claim.entry != NULL, cases[i].filed);
		vg_claim_void(&claim);
		check_over();
	}
}

// A refused claim holds nothing.
static void test_a_refused_claim_is_over(void)
{
	begin();
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 101 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(!claim.open && !claim.entry);
	CHECK_EQUAL(vg_claim_at_once(&claim, 0, VG_WAY_ALLOC, 101 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(!claim.open && !claim.entry);
	CHECK_EQUAL(own()->pending, 0);
	CHECK_EQUAL(own()->used, 0);
	CHECK_EQUAL(under_way(), 0);
}

// A process that allocates queries the agent from time to time.
static void test_a_claim_asks_the_agent(void)
{
	begin();
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 8 * mib), CUDA_SUCCESS);
	vg_claim_void(&claim);
	CHECK_EQUAL(agent.questions, 1);
	vg_audit_start(state);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 8 * mib), CUDA_SUCCESS);
	vg_claim_void(&claim);
	CHECK_EQUAL(agent.questions, 1);
}

// Before a claim is refused, the agent may measure that the process holds less than its charge.
static void test_a_correction_makes_room(void)
{
	begin();
	charge(VG_MODULE, VG_WAY_MODULE, 1, 0, 60 * mib); // an estimate
	vg_audit_start(state);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 50 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	agent.answer = VG_HELD_ANSWERED;
	agent.bytes = 10 * mib;
	vg_audit_start(state);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 50 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(own()->used, 10 * mib);
	CHECK_EQUAL(own()->pending, 50 * mib);
	CHECK_EQUAL(own()->refusals, 1);
	vg_claim_void(&claim);
	check_over();
}

// A part of a context's estimate may be charged already. A claim takes over that part, and returns
// the part if no context begins.
static void test_a_context_that_is_charged_in_part(void)
{
	struct vg_correction *correction;
	struct vg_entry copy;

	begin();
	correction = &state->corrections[0];
	CHECK(test_reserve(&state->pages, 0, 30 * mib));
	correction->again = 30 * mib;

	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 50 * mib), CUDA_SUCCESS); // no context
	CHECK_EQUAL(claim.bytes, 50 * mib);
	vg_claim_void(&claim);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_CONTEXT, 200 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(claim.again, 0);
	CHECK_EQUAL(correction->again, 30 * mib);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_CONTEXT, 50 * mib), CUDA_SUCCESS);
	CHECK_EQUAL(claim.bytes, 20 * mib);
	CHECK_EQUAL(own()->pending, 20 * mib);
	CHECK_EQUAL(correction->again, 0);
	vg_claim_void(&claim);
	CHECK_EQUAL(correction->again, 30 * mib);
	CHECK_EQUAL(own()->used, 30 * mib);
	check_over();

	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_CONTEXT, 50 * mib), CUDA_SUCCESS);
	vg_claim_settle(&claim, VG_CONTEXT, 5, 0);
	check_over();
	CHECK_EQUAL(claim.again, 0);
	CHECK_EQUAL(own()->used, 50 * mib);
	CHECK_EQUAL(own()->context_bytes, 50 * mib);
	CHECK(vg_table_get(&state->table, VG_CONTEXT, 5, &copy));
	CHECK_EQUAL(copy.bytes, 50 * mib);
	CHECK_EQUAL(correction->again, 0);
}

// A void claim never lowers other claims' reservations, however often the test voids the claim.
static void test_a_void_claim(void)
{
	begin();
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 30 * mib), CUDA_SUCCESS);
	vg_claim_void(&claim);
	check_over();
	CHECK_EQUAL(own()->used, 0);
	vg_add(&own()->pending, 7); // of another call
	vg_claim_void(&claim);
	CHECK_EQUAL(own()->pending, 7);
	CHECK_EQUAL(under_way(), 0);
}

static void test_a_claim_becomes_what_was_taken(void)
{
	begin();
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 30 * mib), CUDA_SUCCESS);
	CHECK(vg_claim_resize(&claim, 20 * mib));
	CHECK_EQUAL(own()->pending, 20 * mib);
	CHECK(vg_claim_resize(&claim, 20 * mib));
	CHECK_EQUAL(own()->pending, 20 * mib);
	CHECK(vg_claim_resize(&claim, 100 * mib));
	CHECK(!vg_claim_resize(&claim, 101 * mib));
	CHECK_EQUAL(own()->pending, 100 * mib);
	vg_claim_settle_as(&claim, VG_ARRAY, 5, 9, 40 * mib); // 60 MiB stay charged
	check_over();
	CHECK_EQUAL(own()->used, 100 * mib);
	vg_release_finish(state, vg_release_begin(state, VG_ARRAY, 5), CUDA_SUCCESS);
	CHECK_EQUAL(own()->used, 60 * mib);
}

// A claim can be charged without an entry in the table.
static void test_a_charge_without_an_entry(void)
{
	begin();
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ARRAY, 30 * mib), CUDA_SUCCESS);
	vg_claim_charge(&claim, VG_ARRAY);
	CHECK_EQUAL(own()->used, 30 * mib);
	CHECK_EQUAL(under_way(), 1);
	vg_claim_end(&claim);
	check_over();
}

static bool needless(struct vg_state *of, CUdevice device)
{
	CHECK(of == state);
	return device == 0;
}

// A refusal is counted, and logged once with the relevant facts.
static void test_refusals(void)
{
	int saved = dup(STDERR_FILENO);
	FILE *errors = tmpfile();
	char line[256] = "";
	bool unneeded;

	begin();
	charge(VG_ARRAY, VG_WAY_ARRAY, 1, 0, 98 * mib);
	CHECK(errors && dup2(fileno(errors), STDERR_FILENO) >= 0);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_MANAGED, 3 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_MANAGED, 101 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(dup2(saved, STDERR_FILENO) >= 0);
	rewind(errors);
	CHECK(fgets(line, sizeof line, errors));
	CHECK(!strcmp(line, "nri-vgpu: refused 3 MiB for cuMemAllocManaged: the container's limit on GPU 0 is "
			    "100 MiB, of which 98 MiB are used (further refusals are silent)\n"));
	CHECK(!fgets(line, sizeof line, errors));
	fclose(errors);
	close(saved);
	CHECK_EQUAL(own()->refusals, 2);
	CHECK_EQUAL(state->pages.usage->header.refusals[0].counts[VG_WAY_MANAGED], 2);

	// vg_claim_at_once neither waits nor reports a refusal.
	CHECK_EQUAL(vg_claim_at_once(&claim, 0, VG_WAY_ALLOC, 3 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK_EQUAL(own()->refusals, 2);
	CHECK_EQUAL(vg_claim_at_once(&claim, 0, VG_WAY_ALLOC, 2 * mib), CUDA_SUCCESS);
	vg_claim_void(&claim);
	// The memory of this claim is no longer needed.
	CHECK_EQUAL(vg_claim_unless(&claim, 0, VG_WAY_ALLOC, 3 * mib, needless, &unneeded), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(unneeded);
	CHECK_EQUAL(own()->refusals, 2);
	CHECK_EQUAL(vg_claim_unless(&claim, 0, VG_WAY_ALLOC, 2 * mib, needless, &unneeded), CUDA_SUCCESS);
	CHECK(!unneeded);
	// The driver takes more memory for this claim than was claimed.
	CHECK_EQUAL(vg_claim_refuse(&claim, 9 * mib), CUDA_ERROR_OUT_OF_MEMORY);
	check_over();
	CHECK_EQUAL(own()->refusals, 3);
	CHECK_EQUAL(own()->last_refusal & ((UINT64_C(1) << VG_REFUSAL_SIZE_BITS) - 1), 9 * mib);
	CHECK_EQUAL(own()->used, 98 * mib);
	CHECK_EQUAL(own()->pending, 0);
}

// A claim of 0 bytes is granted even if the container is over its limit.
static void test_nothing_is_granted_always(void)
{
	begin();
	own()->used = 200 * mib;
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 0), CUDA_SUCCESS);
	vg_claim_void(&claim);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 1), CUDA_ERROR_OUT_OF_MEMORY);
}

static void test_the_current_gpu(void)
{
	begin();
	CHECK_EQUAL(vg_claim_current(&claim, VG_WAY_ALLOC, mib), CUDA_SUCCESS);
	CHECK_EQUAL(claim.device, 0);
	vg_claim_void(&claim);
	driver.answer = CUDA_ERROR_NOT_FOUND;
	CHECK_EQUAL(vg_claim_current(&claim, VG_WAY_ALLOC, mib), CUDA_ERROR_NOT_FOUND);
	CHECK_EQUAL(own()->pending, 0);
	driver.answer = CUDA_SUCCESS;
}

static void test_other_gpus(void)
{
	const struct {
		CUdevice device;
		CUresult answer, want;
	} cases[] = {
		{0, CUDA_SUCCESS, CUDA_SUCCESS},
		{1, CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY}, // not a GPU of the container
		{2, CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY},
		{3, CUDA_SUCCESS, CUDA_ERROR_INVALID_DEVICE},
		{-1, CUDA_SUCCESS, CUDA_ERROR_INVALID_DEVICE},
		{3, CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY}, // an unknown device
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		begin();
		driver.answer = cases[i].answer;
		CHECK_EQUAL(vg_claim_on(&claim, cases[i].device, VG_WAY_ALLOC, mib), cases[i].want);
		CHECK_EQUAL(own()->pending, cases[i].want ? 0 : mib);
		CHECK_EQUAL(own()->refusals, 0);
		if (!cases[i].want)
			vg_claim_void(&claim);
	}
}

static void test_before_the_start(void)
{
	begin();
	atomic_store(&state->ready, 0);
	CHECK_EQUAL(vg_claim_on(&claim, 0, VG_WAY_ALLOC, 1), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQUAL(vg_claim_at_once(&claim, 0, VG_WAY_ALLOC, 1), CUDA_ERROR_NOT_INITIALIZED);
	CHECK_EQUAL(vg_claim_current(&claim, VG_WAY_ALLOC, 1), CUDA_ERROR_NOT_INITIALIZED);
}

int main(void)
{
	DRIVER(cuDeviceGetCount, driver_count);
	DRIVER(cuCtxGetDevice, driver_device);
	test_refusals(); // first, because later refusals are not logged
	test_a_claim_is_held_then_charged_then_released();
	test_which_claims_have_an_entry();
	test_a_refused_claim_is_over();
	test_a_claim_asks_the_agent();
	test_a_correction_makes_room();
	test_a_context_that_is_charged_in_part();
	test_a_void_claim();
	test_a_claim_becomes_what_was_taken();
	test_a_charge_without_an_entry();
	test_nothing_is_granted_always();
	test_the_current_gpu();
	test_other_gpus();
	test_before_the_start();
	end();
	return 0;
}
