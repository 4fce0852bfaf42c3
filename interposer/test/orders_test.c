// SPDX-License-Identifier: Apache-2.0

// Every order in which processes can take the steps of a reservation, tried one by one.
//
// reserve.c is compiled into this test so that each access to the shared page is a step, before
// which another process may go on. A run takes one choice at each step; the next run differs
// from it in the last choice that has an alternative left. A process that naps goes on when
// another has changed something. If all nap, time passes.

#define _GNU_SOURCE
#include "reserve.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include "check.h"
#include "fixture.h"
#include "slot.h"

static void step(void);
static void change(void);
static int nap_until_change(const struct timespec *nap);
static uint64_t clock_now;

#define vg_load(field) (step(), vg_load(field))
#define vg_add(field, value) (change(), vg_add(field, value))
#define vg_sub(field, value) (change(), vg_sub(field, value))
#define vg_slot_used(pages, slot, device) (step(), vg_slot_used(pages, slot, device))
#define vg_slots_reap(pages, device) true // no process has died
#define vg_now() clock_now
#define nanosleep(nap, rest) nap_until_change(nap)
#include "reserve.c"
#undef vg_load
#undef vg_add
#undef vg_sub
#undef vg_slot_used
#undef vg_slots_reap
#undef vg_now
#undef nanosleep

enum { most_processes = 3, most_choices = 2000, limit = 1000, stack_size = 1 << 16 };

struct process {
	struct vg_pages pages;
	ucontext_t context;
	bool done;
	bool naps;
	uint64_t changes; // by others, since it last napped
	uint64_t granted; // what it may have of the GPU's memory now
	bool was_granted;
	char stack[stack_size];
};

static struct process processes[most_processes];
static int count; // of processes
static struct process *current;
static void (*body)(struct process *process);
static ucontext_t explorer;

// A choice is how many alternatives there were at a step, and which was taken.
static struct {
	int taken, alternatives;
} choices[most_choices];
static int depth, known; // how far this run has come, and how many choices it repeats
static int switches;     // that this run may still make where it need not
static uint64_t runs;

// choose returns which of so many alternatives to take.
static int choose(int alternatives)
{
	CHECK(depth < most_choices);
	if (depth == known) {
		choices[known].taken = 0;
		choices[known++].alternatives = alternatives;
	}
	CHECK_EQUAL(choices[depth].alternatives, alternatives);
	return choices[depth++].taken;
}

// next returns the process that goes on: the current one, if it can, is the first alternative.
static struct process *next(void)
{
	struct process *ready[most_processes];
	int alternatives = 0;
	bool can_stay = !current->done && !current->naps;
	struct process *chosen;

	if (can_stay)
		ready[alternatives++] = current;
	for (int i = 0; i < count; i++)
		if (&processes[i] != current && !processes[i].done && !processes[i].naps)
			ready[alternatives++] = &processes[i];
	if (alternatives == 0)
		return NULL;
	if (can_stay && switches == 0)
		return current;
	chosen = ready[choose(alternatives)];
	if (can_stay && chosen != current)
		switches--;
	return chosen;
}

static void go_on(struct process *from)
{
	struct process *to = next();

	while (!to) {
		bool all_done = true;

		clock_now += vg_patience_ns + 1;
		for (int i = 0; i < count; i++) {
			processes[i].naps = false;
			all_done = all_done && processes[i].done;
		}
		if (all_done)
			setcontext(&explorer);
		to = next();
	}
	current = to;
	if (to != from)
		swapcontext(&from->context, &to->context);
}

static void step(void)
{
	if (current)
		go_on(current);
}

static void change(void)
{
	step();
	for (int i = 0; current && i < count; i++) {
		if (&processes[i] == current)
			continue;
		processes[i].changes++;
		processes[i].naps = false;
	}
}

static int nap_until_change(const struct timespec *nap)
{
	CHECK(nap->tv_nsec > 0);
	current->naps = current->changes == 0;
	current->changes = 0;
	step();
	return 0;
}

static void run_process(void)
{
	body(current);
	current->done = true;
	go_on(current);
}

static void begin_run(int most_switches)
{
	for (int i = 0; i < most_processes; i++) {
		struct process *process = &processes[i];
		struct vg_slot_device *own = vg_own(&process->pages, 0);

		own->pending = own->used = own->peak = 0;
		atomic_store(&process->pages.own[0], 0);
		process->pages.stuck[0] = (struct vg_stuck){0, 0};
		process->done = process->naps = process->was_granted = false;
		process->changes = process->granted = 0;
		getcontext(&process->context);
		process->context.uc_stack.ss_sp = process->stack;
		process->context.uc_stack.ss_size = sizeof process->stack;
		makecontext(&process->context, run_process, 0);
	}
	clock_now = 1;
	depth = 0;
	switches = most_switches;
}

// explore runs processes in every order in which they are interrupted so many times at most, and
// calls `ended` after each run.
static void explore(int processes_wanted, int most_switches, void (*run)(struct process *process), void (*ended)(void))
{
	count = processes_wanted;
	body = run;
	known = 0;
	runs = 0;
	do {
		volatile bool started = false;

		begin_run(most_switches);
		getcontext(&explorer);
		if (!started) {
			started = true;
			current = &processes[0];
			current = &processes[choose(count)];
			setcontext(&current->context);
		}
		current = NULL;
		ended();
		runs++;
		while (known > 0 && choices[known - 1].taken + 1 == choices[known - 1].alternatives)
			known--;
		if (known > 0)
			choices[known - 1].taken++;
	} while (known > 0);
	printf("%llu orders\n", (unsigned long long)runs);
}

// grant notes what a process may have of the GPU's memory from now on.
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

// ---- what processes do

static void take_at_once(struct process *process)
{
	if (!vg_hold_at_once(&process->pages, 0, 600))
		return;
	grant(process, 600);
	vg_settle(&process->pages, 0, 600, 600);
}

static void take_and_free_at_once(struct process *process)
{
	take_at_once(process);
	process->granted = 0;
	vg_release(&process->pages, 0, process->was_granted ? 600 : 0);
}

static void take(struct process *process)
{
	if (!vg_hold(&process->pages, 0, 600))
		return;
	grant(process, 600);
	vg_settle(&process->pages, 0, 600, 600);
}

// fail_to_take is what a process does whose driver has not enough.
static void fail_to_take(struct process *process)
{
	CHECK(vg_hold(&process->pages, 0, 600));
	grant(process, 600);
	process->granted = 0;
	vg_settle(&process->pages, 0, 600, 0);
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

int main(void)
{
	struct vg_limits_device device = test_device(1, limit);
	const char *dir = test_dir();
	struct vg_error error;

	CHECK(test_pages_make(dir, &device, 1) == 0);
	for (int i = 0; i < most_processes; i++) {
		CHECK(vg_pages_open(&processes[i].pages, dir, &error) == 0);
		CHECK(vg_slot_take(&processes[i].pages, &error) == 0);
	}
	// All orders of two processes; of more steps those with a few interruptions, which is where
	// mistakes show.
	explore(2, most_choices, take_at_once, check_books);
	explore(3, 3, take_at_once, check_books);
	explore(2, 6, take_and_free_at_once, check_books);
	explore(2, 4, take, one_is_granted);
	explore(2, 4, fail_to_take, all_are_granted);
	return 0;
}
