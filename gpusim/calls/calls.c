// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

_Static_assert(GS_MAX_FAILURES <= 32, "failures of a call are bits of a word");

struct watched {
	uint64_t cost_ns;
	uint32_t failures; /* bits: which of the driver's */
	_Atomic uint32_t calls;
};

unsigned char gs_calls_watched;
static const struct gs_driver *profile;
static uint64_t look_ns; /* what a look at the clock takes */
static struct watched *_Atomic watched; /* by index; NULL: the profile names no call */
static uint64_t *_Atomic counter;

static int compare(const void *name, const void *entry)
{
	return strcmp(name, *(const char *const *)entry);
}

int gs_call_find(const char *name)
{
	const char *const *found =
		bsearch(name, gs_call_names, gs_call_count, sizeof(*gs_call_names), compare);

	return found ? (int)(found - gs_call_names) : -1;
}

static uint64_t time_look(void)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 100; i++) {
		uint64_t before = gs_now(), took = gs_now() - before;

		least = took < least ? took : least;
	}
	return least;
}

static void fill(struct watched *all, const struct gs_driver *driver)
{
	for (uint32_t i = 0; i < driver->cost_count; i++) {
		int index = gs_call_find(driver->costs[i].call);

		if (index >= 0)
			all[index].cost_ns = driver->costs[i].ns;
	}
	for (uint32_t i = 0; i < driver->failure_count; i++) {
		int index = gs_call_find(driver->failures[i].call);

		if (index >= 0)
			all[index].failures |= 1u << i;
	}
}

int gs_calls_load(const struct gs_driver *driver, const char *first)
{
	struct watched *all;
	int index = gs_call_find(first);

	if (atomic_load(&watched) || (!driver->cost_count && !driver->failure_count))
		return 0;
	all = calloc(gs_call_count, sizeof(*all));
	if (!all)
		abort(); /* a test would pass for want of the failures that it asked for */
	fill(all, driver);
	profile = driver;
	look_ns = time_look();
	atomic_store(&watched, all);
	__atomic_store_n(&gs_calls_watched, 1, __ATOMIC_RELEASE);
	return index >= 0 ? gs_call_begin((uint32_t)index) : 0;
}

void gs_calls_count(uint64_t *to)
{
	atomic_store(&counter, to);
	if (to)
		__atomic_store_n(&gs_calls_watched, 1, __ATOMIC_RELEASE);
}

/*
 * A driver's calls keep the processor busy: a sleep would be far too long. What is
 * shorter than a look at the clock passes with the entry and the function itself.
 */
static void spin(uint64_t ns)
{
	uint64_t end;

	if (ns <= look_ns)
		return;
	end = gs_now() + ns - look_ns;
	while (gs_now() < end)
		__builtin_ia32_pause();
}

/* Whether a failure is one of a call before which so many of its name were made. */
static bool applies(const struct gs_failure *failure, uint32_t before)
{
	return before >= failure->after &&
	       (!failure->count || before - failure->after < failure->count);
}

int gs_call_begin(uint32_t index)
{
	uint64_t *counted = atomic_load_explicit(&counter, memory_order_acquire);
	struct watched *all = atomic_load(&watched);
	struct watched *call;
	uint32_t before;

	if (counted)
		(void)__atomic_add_fetch(counted, 1, __ATOMIC_RELAXED);
	if (!all)
		return 0;
	call = &all[index];
	if (call->cost_ns)
		spin(call->cost_ns);
	if (!call->failures)
		return 0;
	before = atomic_fetch_add(&call->calls, 1);
	for (uint32_t i = 0; i < GS_MAX_FAILURES; i++)
		if ((call->failures & 1u << i) && applies(&profile->failures[i], before))
			return profile->failures[i].result;
	return 0;
}
