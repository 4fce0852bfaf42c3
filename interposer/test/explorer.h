// SPDX-License-Identifier: Apache-2.0

// Every order in which processes can take their steps, tried one by one.
//
// A test compiles a source file into itself so that each access to what processes share is a
// step, before which another process may go on. A run takes one choice at each step; the next
// run differs from it in the last choice that has an alternative left. A process that naps goes
// on when another has changed something. If all nap, time passes.

#ifndef VG_TEST_EXPLORER_H
#define VG_TEST_EXPLORER_H

enum { explorer_most_processes = 3, explorer_all_switches = 2000 };

struct exploration {
	int processes;
	int most_switches; // that a run makes where it need not
	void (*begin)(int process); // of every possible process, before each run
	void (*body)(int process);
	void (*ended)(void);        // after each run
	void (*time_passes)(void);           // may be NULL
	void (*switches)(int from, int to); // may be NULL
};

// explore runs processes in every order in which they are interrupted so many times at most.
void explore(const struct exploration *what);

// explorer_self is the process that runs, or -1 between runs.
int explorer_self(void);

// explorer_step lets others go on. explorer_change is the step before one that changes what
// others may wait for. Both do nothing between runs.
void explorer_step(void);
void explorer_change(void);

// explorer_nap waits until another process has changed something since the last nap.
void explorer_nap(void);

// explorer_choose returns each number below `alternatives`, in different runs.
int explorer_choose(int alternatives);

// explorer_end ends the process that runs where it stands.
void explorer_end(void) __attribute__((noreturn));

#endif
