// SPDX-License-Identifier: Apache-2.0

// This header declares the data that a storm's threads (storm_thread.c) and its process (storm.c)
// share.
#ifndef WL_STORM_H
#define WL_STORM_H

#include <pthread.h>
#include <stdatomic.h>

#include "ways.h"

enum {
	wl_most_ways = 64,
	wl_most_held = 16,          // pieces of one thread
	wl_most_children = 8,       // at a time
	wl_child_threads = 4,       // of a child that calls exec
	wl_child_patience_s = 20,   // after this time a child has hung
	wl_phase_steps = 64,        // steps between changes of a thread's greed
};

struct wl_storm_options {
	struct wl_common common;
	const char *ways;
	uint64_t threads, seed, largest, pause;
	double duration, fork_period;
};

// wl_storm is the data that the threads share.
struct wl_storm {
	const struct wl_storm_options *options;
	const char *program;
	struct wl_session session; // copied by each thread
	const struct wl_way *ways[wl_most_ways];
	size_t way_count;
	double deadline;
	atomic_bool stop;
	atomic_size_t takes[wl_most_ways]; // granted, by way
	atomic_size_t refusals, frees;
	size_t start_refusals, forks, execs, child_failures;
	int child_status; // of the child that failed last
	size_t children;
};

struct wl_held {
	const struct wl_way *way;
	struct wl_filler *filler;
	struct wl_grant grant;
};

struct wl_thread {
	struct wl_storm *storm;
	pthread_t id;
	uint64_t random;
	bool failed;
	unsigned greed; // number of allocations in 100 steps
	struct wl_session session;
	CUstream stream;
	struct wl_filler fillers[wl_most_ways];
	struct wl_held held[wl_most_held];
	size_t held_count;
};

// wl_random is xorshift64*. The seed repeats a storm as far as the kernel's scheduling of threads
// allows.
static inline uint64_t wl_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(2685821657736338717) >> 16;
}

static inline uint64_t wl_below(uint64_t *state, uint64_t bound)
{
	return wl_random(state) % bound;
}

static inline uint64_t wl_seeded(uint64_t seed, uint64_t stream)
{
	return (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^
	       (stream + 1) * UINT64_C(0xbf58476d1ce4e5b9);
}

// wl_storm_work runs a thread of the storm, until the thread or the storm ends.
void *wl_storm_work(void *argument);

#endif
