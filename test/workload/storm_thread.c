// SPDX-License-Identifier: Apache-2.0

// This file implements one thread of a storm, which allocates, frees and queries memory at random.

#include <stdio.h>
#include <unistd.h>

#include "storm.h"

// wl_size returns a random size. Sizes are uniform over the orders of magnitude, as in programs.
static size_t wl_size(struct wl_thread *thread, size_t unit, size_t largest)
{
	unsigned bits = 0;
	uint64_t bytes;

	while (largest >> bits > 1)
		bits++;
	bytes = wl_below(&thread->random,
			 UINT64_C(1) << (1 + wl_below(&thread->random, bits + 1)));
	if (bytes > largest)
		bytes = largest;
	return bytes < unit ? unit : bytes / unit * unit;
}

static int wl_prepare_way(struct wl_thread *thread, size_t number)
{
	struct wl_filler *filler = &thread->fillers[number];
	const struct wl_way *way = thread->storm->ways[number];

	if (filler->session)
		return 0;
	*filler = (struct wl_filler){.session = &thread->session,
				     .stream = thread->stream,
				     .granularity = 1};
	if (!way->prepare || way->prepare(filler) == 0)
		return 0;
	filler->session = NULL;
	return -1;
}

static bool wl_refused(const struct wl_thread *thread)
{
	return thread->session.result == CUDA_ERROR_OUT_OF_MEMORY;
}

static int wl_take(struct wl_thread *thread)
{
	struct wl_storm *storm = thread->storm;
	struct wl_held *held = &thread->held[thread->held_count];
	size_t number = wl_below(&thread->random, storm->way_count);
	size_t largest = storm->options->largest;
	const struct wl_way *way = storm->ways[number];
	struct wl_filler *filler = &thread->fillers[number];

	if (way->largest && way->largest < largest)
		largest = way->largest;
	*held = (struct wl_held){.way = way, .filler = filler};
	if (wl_prepare_way(thread, number) ||
	    way->take(filler, wl_size(thread, filler->granularity, largest),
		      &held->grant)) {
		if (!wl_refused(thread))
			return -1;
		atomic_fetch_add(&storm->refusals, 1);
		return 1;
	}
	thread->held_count++;
	atomic_fetch_add(&storm->takes[number], 1);
	return 0;
}

static int wl_give(struct wl_thread *thread)
{
	size_t which = wl_below(&thread->random, thread->held_count);
	struct wl_held held = thread->held[which];

	thread->held[which] = thread->held[--thread->held_count];
	atomic_fetch_add(&thread->storm->frees, 1);
	if (held.way->give(held.filler, &held.grant))
		return -1;
	if (!held.way->settle || wl_below(&thread->random, 4) > 0)
		return 0;
	return held.way->settle(held.filler);
}

// wl_look makes queries that a program may make at any time, and retains the primary context a
// second time for a moment.
static int wl_look(struct wl_thread *thread)
{
	const struct wl_driver *driver = &thread->session.driver;
	size_t available, total;
	CUcontext context;

	if (wl_session_check(&thread->session, "cuMemGetInfo",
			     WL_CALL(driver, mem_info, &available, &total)))
		return -1;
	if (available > total) {
		snprintf(thread->session.message, sizeof thread->session.message,
			 "%zu bytes are free of %zu", available, total);
		return -1;
	}
	if (wl_session_check(&thread->session, "cuDevicePrimaryCtxRetain",
			     WL_CALL(driver, primary_retain, &context,
				     thread->session.device)))
		return -1;
	return wl_session_check(&thread->session, "cuDevicePrimaryCtxRelease",
				WL_CALL(driver, primary_release,
					thread->session.device));
}

// wl_step makes a thread alternate between mostly allocating and mostly freeing. Therefore the
// container is often full, and sometimes has room for a process that starts.
static int wl_step(struct wl_thread *thread)
{
	bool room = thread->held_count < wl_most_held;
	bool take = wl_below(&thread->random, 100) < thread->greed;
	int failed;

	if (wl_below(&thread->random, wl_phase_steps) == 0)
		thread->greed = wl_below(&thread->random, 2) ? 80 : 15;
	if (wl_below(&thread->random, 16) == 0)
		return wl_look(thread);
	if (thread->held_count == 0 || (take && room)) {
		failed = wl_take(thread);
		if (failed <= 0 || thread->held_count == 0)
			return failed < 0 ? -1 : 0;
	}
	return wl_give(thread);
}

static int wl_begin_thread(struct wl_thread *thread)
{
	const struct wl_driver *driver = &thread->session.driver;

	if (wl_session_check(&thread->session, "cuCtxSetCurrent",
			     WL_CALL(driver, ctx_set_current,
				     thread->session.context)))
		return -1;
	return wl_session_check(&thread->session, "cuStreamCreate",
				WL_CALL(driver, stream_create, &thread->stream,
					CU_STREAM_NON_BLOCKING));
}

void *wl_storm_work(void *argument)
{
	struct wl_thread *thread = argument;
	struct wl_storm *storm = thread->storm;

	thread->failed = wl_begin_thread(thread) != 0;
	while (!thread->failed && !atomic_load(&storm->stop) &&
	       wl_now() < storm->deadline) {
		thread->failed = wl_step(thread) != 0;
		if (storm->options->pause)
			usleep((useconds_t)wl_below(&thread->random,
						    storm->options->pause));
	}
	if (thread->failed)
		atomic_store(&storm->stop, true);
	return NULL;
}
