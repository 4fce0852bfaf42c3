// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "explorer.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include "check.h"

enum { most_choices = 2000, stack_size = 1 << 16 };

struct process {
	ucontext_t context;
	bool done;
	bool naps;
	uint64_t changes; // other processes have changed shared data since the process's last nap
	char stack[stack_size];
};

static struct exploration explored;
static struct process processes[explorer_most_processes];
static struct process *current;
static ucontext_t explorer;

// choice holds the number of alternatives at a step, and the taken alternative.
static struct {
	int taken, alternatives;
} choices[most_choices];
static int depth, known; // number of steps so far, and of choices that this run repeats
static int switches;     // optional switches that this run may still make

int explorer_self(void)
{
	return current ? (int)(current - processes) : -1;
}

int explorer_choose(int alternatives)
{
	CHECK(depth < most_choices);
	if (depth == known) {
		choices[known].taken = 0;
		choices[known++].alternatives = alternatives;
	}
	CHECK_EQUAL(choices[depth].alternatives, alternatives);
	return choices[depth++].taken;
}

// next returns the next process. The first choice is the current process, if it can continue.
static struct process *next(void)
{
	struct process *ready[explorer_most_processes];
	int alternatives = 0;
	bool can_stay = !current->done && !current->naps;
	struct process *chosen;

	if (can_stay)
		ready[alternatives++] = current;
	for (int i = 0; i < explored.processes; i++)
		if (&processes[i] != current && !processes[i].done && !processes[i].naps)
			ready[alternatives++] = &processes[i];
	if (alternatives == 0)
		return NULL;
	if (can_stay && switches == 0)
		return current;
	chosen = ready[explorer_choose(alternatives)];
	if (can_stay && chosen != current)
		switches--;
	return chosen;
}

static void go_on(struct process *from)
{
	struct process *to = next();

	while (!to) {
		bool all_done = true;

		if (explored.time_passes)
			explored.time_passes();
		for (int i = 0; i < explored.processes; i++) {
			processes[i].naps = false;
			all_done = all_done && processes[i].done;
		}
		if (all_done)
			setcontext(&explorer);
		to = next();
	}
	if (to == from)
		return;
	current = to;
	if (explored.switches)
		explored.switches((int)(from - processes), (int)(to - processes));
	swapcontext(&from->context, &to->context);
}

void explorer_step(void)
{
	if (current)
		go_on(current);
}

void explorer_change(void)
{
	explorer_step();
	for (int i = 0; current && i < explored.processes; i++) {
		if (&processes[i] == current)
			continue;
		processes[i].changes++;
		processes[i].naps = false;
	}
}

void explorer_nap(void)
{
	current->naps = current->changes == 0;
	current->changes = 0;
	explorer_step();
}

void explorer_end(void)
{
	current->done = true;
	go_on(current);
	abort();
}

static void run_process(void)
{
	explored.body(explorer_self());
	explorer_end();
}

static void begin_run(void)
{
	for (int i = 0; i < explorer_most_processes; i++) {
		struct process *process = &processes[i];

		explored.begin(i);
		process->done = process->naps = false;
		process->changes = 0;
		getcontext(&process->context);
		process->context.uc_stack.ss_sp = process->stack;
		process->context.uc_stack.ss_size = sizeof process->stack;
		makecontext(&process->context, run_process, 0);
	}
	depth = 0;
	switches = explored.most_switches;
}

static void run(void)
{
	volatile bool started = false;

	begin_run();
	getcontext(&explorer);
	if (!started) {
		started = true;
		current = &processes[explorer_choose(explored.processes)];
		if (explored.switches)
			explored.switches(explorer_self(), explorer_self());
		setcontext(&current->context);
	}
	current = NULL;
	explored.ended();
}

void explore(const struct exploration *what)
{
	uint64_t runs = 0;

	explored = *what;
	known = 0;
	do {
		run();
		runs++;
		while (known > 0 && choices[known - 1].taken + 1 == choices[known - 1].alternatives)
			known--;
		if (known > 0)
			choices[known - 1].taken++;
	} while (known > 0);
	printf("%llu orders\n", (unsigned long long)runs);
}
