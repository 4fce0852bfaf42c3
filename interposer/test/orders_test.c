// SPDX-License-Identifier: Apache-2.0

// This test covers every order of the steps of a reservation by several processes. Each access of
// reserve.c to the shared page is a step (explorer.h).

#define _GNU_SOURCE
#include "reserve_steps.h"

enum { limit = 1000 };

struct process {
	struct vg_pages pages;
	uint64_t granted; // bytes of the GPU's memory that the process may currently use
	bool was_granted;
};

static struct process processes[explorer_most_processes];
static int count; // of processes
static void (*work)(struct process *process);

static void begin(int at)
{
	struct process *process = &processes[at];
	struct vg_slot_device *own = vg_own(&process->pages, 0);

	own->pending = own->used = own->peak = 0;
	atomic_store(&process->pages.own[0], 0);
	process->pages.stuck[0] = (struct vg_stuck){0, 0};
	process->was_granted = false;
	process->granted = 0;
	clock_now = 1;
}

static void body(int at)
{
	work(&processes[at]);
}

// try_orders runs `wanted` processes, which execute the same steps.
static void try_orders(int wanted, int most_switches, void (*what)(struct process *process), void (*ended)(void))
{
	count = wanted;
	work = what;
	explore(&(struct exploration){.processes = wanted, .most_switches = most_switches, .begin = begin,
				      .body = body, .ended = ended, .time_passes = let_time_pass});
}

// grant records the bytes of the GPU's memory that a process may use from then on.
static void grant(struct process *process, uint64_t bytes)
{
	uint64_t all = 0;

	process->granted = bytes;
	process->was_granted = true;
	for (int i = 0; i < count; i++)
		all += processes[i].granted;
	CHECK(all <= limit);
}

static int granted(void)
{
	int all = 0;

	for (int i = 0; i < count; i++)
		all += processes[i].was_granted;
	return all;
}

static void check_books(void)
{
	for (int i = 0; i < count; i++) {
		const struct vg_slot_device *own = vg_own(&processes[i].pages, 0);

		CHECK_EQUAL(own->pending, 0);
		CHECK_EQUAL(own->used, processes[i].granted);
	}
}

// ---- actions of processes

static void take_at_once(struct process *process)
{
	if (!vg_reserve_hold_at_once(&process->pages, 0, 600))
		return;
	grant(process, 600);
	vg_reserve_settle(&process->pages, 0, 600, 600);
}

static void take_and_free_at_once(struct process *process)
{
	take_at_once(process);
	process->granted = 0;
	vg_reserve_release(&process->pages, 0, process->was_granted ? 600 : 0);
}

static void take(struct process *process)
{
	if (!vg_reserve_hold(&process->pages, 0, 600))
		return;
	grant(process, 600);
	vg_reserve_settle(&process->pages, 0, 600, 600);
}

// fail_to_take is the reservation of a process whose driver lacks memory.
static void fail_to_take(struct process *process)
{
	CHECK(vg_reserve_hold(&process->pages, 0, 600));
	grant(process, 600);
	process->granted = 0;
	vg_reserve_settle(&process->pages, 0, 600, 0);
}

static void one_is_granted(void)
{
	check_books();
	CHECK_EQUAL(granted(), 1);
}

static void all_are_granted(void)
{
	check_books();
	CHECK_EQUAL(granted(), count);
}

// ---- length of waits

enum { own_bytes = 100 };
static const uint64_t start = UINT64_C(1) << 40;

static bool wait_is_over(struct vg_wait *wait, uint64_t now, uint64_t others, struct vg_stuck *stuck)
{
	const struct vg_reserved sum = {.used = others / 2, .pending = others - others / 2 + own_bytes};

	clock_now = now;
	return vg_wait_is_over(wait, &sum, own_bytes, stuck);
}

// Without changes, a process waits for a second. In the next 30 s, later processes do not wait.
static void test_waits_for_what_does_not_move(void)
{
	struct vg_wait first = {.since = start, .moved = start}, second;
	struct vg_stuck stuck = {0};

	CHECK(!wait_is_over(&first, start, 900, &stuck));
	CHECK(!wait_is_over(&first, start + vg_patience_ns, 900, &stuck));
	CHECK(wait_is_over(&first, start + vg_patience_ns + 1, 900, &stuck));
	CHECK_EQUAL(stuck.bytes, 900);
	CHECK_EQUAL(stuck.until, start + vg_patience_ns + 1 + vg_longest_wait_ns);
	second = (struct vg_wait){.since = stuck.until - 1, .moved = stuck.until - 1};
	CHECK(wait_is_over(&second, stuck.until - 1, 900, &stuck));
	CHECK(!wait_is_over(&second, stuck.until - 1, 901, &stuck)); // the sum has changed
	CHECK(!wait_is_over(&second, stuck.until, 900, &stuck));
}

// A process continues to wait while other processes make changes, for 30 s at most.
static void test_waits_for_what_moves(void)
{
	struct vg_wait wait = {.since = start, .moved = start};
	struct vg_stuck stuck = {0};
	uint64_t others = 900;

	for (uint64_t now = start; now < start + vg_longest_wait_ns; now += vg_patience_ns)
		CHECK(!wait_is_over(&wait, now, others++, &stuck));
	CHECK(!wait_is_over(&wait, start + vg_longest_wait_ns, others++, &stuck));
	CHECK(wait_is_over(&wait, start + vg_longest_wait_ns + 1, others, &stuck));
	CHECK_EQUAL(stuck.until, 0); // the next process also waits
}

// Room ends the time in which no process waits for the same sum.
static void test_room_ends_the_refusals(void)
{
	struct process *process = &processes[0];

	begin(0);
	process->pages.stuck[0] = (struct vg_stuck){900, UINT64_MAX};
	CHECK(vg_reserve_hold_slowly(&process->pages, 0, 600));
	CHECK_EQUAL(process->pages.stuck[0].until, 0);
	vg_reserve_settle(&process->pages, 0, 600, 0);
}

// Of waiting processes, the process in the lowest slot keeps its claim. Only claims in lower slots
// count, and not the process's own claim.
static void test_claims_below(void)
{
	const uint64_t pending[explorer_most_processes] = {100, 200, 400}, below[explorer_most_processes] = {0, 100, 300};

	for (int i = 0; i < explorer_most_processes; i++) {
		begin(i);
		vg_own(&processes[i].pages, 0)->pending = pending[i];
	}
	for (int i = 0; i < explorer_most_processes; i++) {
		struct vg_reserved sum = vg_sum_up(&processes[i].pages, 0);

		CHECK_EQUAL(processes[i].pages.slot, i);
		CHECK_EQUAL(sum.pending, 700);
		CHECK_EQUAL(sum.pending_below, below[i]);
	}
}

int main(void)
{
	struct vg_limits_device device = test_device(1, limit);
	const char *dir = test_dir();
	struct vg_error error;

	CHECK(test_pages_make(dir, &device, 1) == 0);
	for (int i = 0; i < explorer_most_processes; i++) {
		CHECK(vg_limits_open(&processes[i].pages, dir, &error) == 0);
		CHECK(vg_slot_take(&processes[i].pages, &error) == 0);
	}
	test_waits_for_what_does_not_move();
	test_waits_for_what_moves();
	test_room_ends_the_refusals();
	test_claims_below();
	// main runs all orders of two processes. For functions with more steps, main runs only
	// orders with a few interruptions, which reveal most mistakes.
	try_orders(2, explorer_all_switches, take_at_once, check_books);
	try_orders(3, 3, take_at_once, check_books);
	try_orders(2, 6, take_and_free_at_once, check_books);
	try_orders(2, 4, take, one_is_granted);
	try_orders(2, 4, fail_to_take, all_are_granted);
	return 0;
}
