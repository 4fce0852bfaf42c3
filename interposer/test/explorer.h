// SPDX-License-Identifier: Apache-2.0

// This header declares an explorer, which runs every possible order of the steps of processes, one
// by one.
//
// A test includes a source file in which each access to shared data is a step. Another process may
// continue before each step. A run makes one choice at each step. The next run differs in the last
// choice that has an alternative left. A process that naps continues when another process has
// changed shared data. If all processes nap, time passes.

#ifndef VG_TEST_EXPLORER_H
#define VG_TEST_EXPLORER_H

enum { explorer_most_processes = 3, explorer_all_switches = 2000 };

struct exploration {
	int processes;
	int most_switches; // optional switches in a run
	void (*begin)(int process); // for every possible process, before each run
	void (*body)(int process);
	void (*ended)(void);        // after each run
	void (*time_passes)(void);           // may be NULL
	void (*switches)(int from, int to); // may be NULL
};

// explore runs the processes in every order with at most `most_switches` optional switches.
void explore(const struct exploration *what);

// explorer_self returns the running process, or -1 between runs.
int explorer_self(void);

// explorer_step lets other processes continue. explorer_change lets other processes continue before
// a change for which they may wait. Both functions have no effect between runs.
void explorer_step(void);
void explorer_change(void);

// explorer_nap waits until another process has changed shared data since the last nap.
void explorer_nap(void);

// explorer_choose returns a number below `alternatives`. Different runs return each number.
int explorer_choose(int alternatives);

// explorer_end ends the running process at its current step.
void explorer_end(void) __attribute__((noreturn));

#endif
