// SPDX-License-Identifier: Apache-2.0

// This test covers every order of the steps of a reservation and of the agent's shrink of the limit.
// The agent lowers the limit and then reads the use (pkg/hook/resize.go, lower). If the use is within the
// new limit, other containers get the difference. Afterwards the process may not hold more than the new
// limit.

#define _GNU_SOURCE
#include "reserve_steps.h"

enum { before = 1000, after = 500, wanted = 600 };

static const char *dir;
static struct vg_pages pages;
static bool granted, shrunk, at_once;
static int grants, shrinks, orders;

static void limit_to(uint64_t bytes)
{
	struct vg_limits_device device = test_device(1, bytes);

	CHECK(test_pages_update(dir, &device, 1) == 0);
}

static void begin(int at)
{
	struct vg_slot_device *own = vg_own(&pages, 0);

	if (at)
		return;
	own->pending = own->used = own->peak = 0;
	atomic_store(&pages.own[0], 0);
	pages.stuck[0] = (struct vg_stuck){0, 0};
	granted = shrunk = false;
	clock_now = 1;
	limit_to(before);
}

static void process(void)
{
	granted = at_once ? vg_reserve_hold_at_once(&pages, 0, wanted) : vg_reserve_hold(&pages, 0, wanted);
	if (granted)
		vg_reserve_settle(&pages, 0, wanted, wanted);
}

static void agent(void)
{
	uint64_t pending, used;

	explorer_change();
	limit_to(after);
	explorer_step();
	pending = vg_own(&pages, 0)->pending;
	explorer_step();
	used = vg_own(&pages, 0)->used;
	shrunk = pending + used <= after;
}

static void body(int at) { at ? agent() : process(); }

static void ended(void)
{
	orders++;
	grants += granted;
	shrinks += shrunk;
	CHECK(!shrunk || !granted);
}

int main(void)
{
	struct vg_limits_device device = test_device(1, before);
	struct vg_error error;

	step_at_limits = true;
	dir = test_dir();
	CHECK(test_pages_make(dir, &device, 1) == 0);
	CHECK(vg_limits_open(&pages, dir, &error) == 0);
	CHECK(vg_slot_take(&pages, &error) == 0);
	for (int i = 0; i < 2; i++) {
		at_once = i == 0;
		grants = shrinks = orders = 0;
		explore(&(struct exploration){.processes = 2, .most_switches = at_once ? explorer_all_switches : 4, .begin = begin,
					      .body = body, .ended = ended, .time_passes = let_time_pass});
		CHECK(grants > 0 && shrinks > 0);
		printf("%d orders\n", orders);
	}
	return 0;
}
