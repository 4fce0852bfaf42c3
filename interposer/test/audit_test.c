// SPDX-License-Identifier: Apache-2.0

// What an audit makes of a look at the process, whatever happens beside it. The look
// is played, so that other threads can do their part at the worst moment: between it
// and the reading of the account.

#define _GNU_SOURCE
#include "audit.h"

#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "fixture.h"
#include "physical.h"
#include "pool.h"
#include "reserve.h"
#include "slot.h"

enum { own_pid = 1 };

static struct vg_state *state;
static uint64_t physical;
static uint64_t pool_held;
static void (*meanwhile)(void);

void vg_pools_refresh(struct vg_state *of)
{
	CHECK(of == state);
}

void vg_snapshot_take(struct vg_state *of, uint32_t device, struct vg_snapshot *snapshot)
{
	snapshot->valid = true;
	snapshot->calls = atomic_load(&of->calls);
	snapshot->pools = pool_held;
	snapshot->count = 1;
	snapshot->processes[0].pid = own_pid;
	snapshot->processes[0].bytes = physical;
	CHECK_EQUAL(device, 0);
	if (meanwhile)
		meanwhile();
}

uint64_t vg_snapshot_bytes(const struct vg_snapshot *snapshot, unsigned pid)
{
	CHECK_EQUAL(pid, own_pid);
	return snapshot->processes[0].bytes;
}

static void setup(void)
{
	struct vg_limits_device device = test_device(1, 1 << 20);
	struct vg_error error;
	char dir[256];

	snprintf(dir, sizeof dir, "%s", test_dir());
	CHECK(test_pages_make(dir, &device, 1) == 0);
	state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(state != MAP_FAILED);
	CHECK(vg_pages_open(&state->pages, dir, &error) == 0);
	CHECK(vg_slot_take(&state->pages, &error) == 0);
	state->nvml_pid = own_pid;
	meanwhile = NULL;
	pool_held = 0;
}

static void teardown(void)
{
	vg_pages_close(&state->pages);
	munmap(state, sizeof *state);
}

static void audit(void)
{
	atomic_store(&state->audited_ms[0], 0);
	vg_begin(state);
	vg_audit(state, 0, 8 * VG_MIB);
	vg_end(state);
}

static uint64_t used(void)
{
	return vg_memory_used(&state->pages, 0);
}

static void test_what_grows_without_a_call(void)
{
	setup();
	CHECK(vg_reserve(&state->pages, 0, 1000));
	physical = 1100;
	audit();
	CHECK_EQUAL(used(), 1100);
	audit();
	CHECK_EQUAL(used(), 1100);
	physical = 1040;
	audit();
	CHECK_EQUAL(used(), 1040);
	physical = 900; // managed memory, say, that is not on the GPU
	audit();
	CHECK_EQUAL(used(), 1000);
	teardown();
}

static void take(void)
{
	vg_begin(state);
	CHECK(vg_reserve(&state->pages, 0, 100));
	physical += 100;
	vg_end(state);
	meanwhile = NULL;
}

static void give(void)
{
	vg_begin(state);
	physical -= 300;
	vg_release(&state->pages, 0, 300);
	vg_end(state);
	meanwhile = NULL;
}

// The look is at `physical` before, the account after another thread's call.
static void test_calls_meanwhile(void (*call)(void), uint64_t want)
{
	setup();
	CHECK(vg_reserve(&state->pages, 0, 1000));
	physical = 1100;
	audit();
	CHECK_EQUAL(used(), 1100);
	meanwhile = call;
	audit();
	CHECK_EQUAL(used(), want);
	CHECK_EQUAL(used(), physical);
	audit();
	CHECK_EQUAL(used(), physical);
	teardown();
}

// charge_pool has the first pool charged with other than what it holds.
static void charge_pool(uint64_t charged, uint64_t held)
{
	struct vg_pool *pool = &state->pools[0];

	if (charged > pool->charged)
		CHECK(vg_reserve(&state->pages, 0, charged - pool->charged));
	else
		vg_release(&state->pages, 0, pool->charged - charged);
	pool->in_use = true;
	pool->charged = charged;
	pool_held = held;
}

static void refresh_pool(void)
{
	charge_pool(pool_held, pool_held);
	meanwhile = NULL;
}

// A pool gives memory back without a call, and is charged with it for a while.
static void test_pool_that_shrinks(void)
{
	setup();
	CHECK(vg_reserve(&state->pages, 0, 1000));
	charge_pool(500, 500);
	physical = 1600;
	audit();
	CHECK_EQUAL(used(), 1600);
	charge_pool(500, 200);
	physical = 1300;
	audit();
	CHECK_EQUAL(used(), 1600);
	meanwhile = refresh_pool;
	audit();
	CHECK_EQUAL(used(), 1300);
	teardown();
}

int main(void)
{
	test_what_grows_without_a_call();
	test_calls_meanwhile(take, 1200);
	test_calls_meanwhile(give, 800);
	test_pool_that_shrinks();
	return 0;
}
