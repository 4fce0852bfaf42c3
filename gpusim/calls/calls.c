// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

_Static_assert(GS_MAX_FAILURES <= 32, "failures of a call are bits of a word");

struct watched {
	uint64_t cost_ns;
	uint32_t failures; /* bits: indices of the driver's failures for this call */
	_Atomic uint32_t calls;
};

unsigned char gs_calls_watched;
static const struct gs_driver *profile;
static uint64_t entry_ns; /* time that an entry takes beside the function and its cost */
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

/*
 * spin_until spins until a time. A call of the real driver keeps the processor busy, and a sleep
 * would take far longer. A cost below the entry's time adds no delay.
 */
static void spin_until(uint64_t end)
{
	while (gs_now() + entry_ns < end)
		; /* a pause instruction takes longer than some calls */
}

/*
 * QUICK places a thread's variable where the code finds the variable without a call of the loader.
 * A call of the loader would take a tenth of the cheapest call's cost. The variables are small
 * enough for the space that the loader reserves for them.
 */
#define QUICK __attribute__((tls_model("initial-exec")))

/* MAX_NESTED bounds the unfinished calls of a thread. Callbacks inside a call make further calls.
 */
#define MAX_NESTED 16u

static _Thread_local struct {
	const void *back;
	uint64_t end;
} nested[MAX_NESTED] QUICK;
static _Thread_local uint32_t depth QUICK;

extern const char gs_call_return[] __attribute__((visibility("hidden")));

/*
 * dithered varies a cost. A reading of the clock takes longer than 5 % of some calls' cost. The
 * variation of up to 32 ns, or an eighth, keeps the average from being rounded up to whole clock
 * readings.
 */
static uint64_t dithered(uint64_t ns)
{
	static _Thread_local uint32_t calls QUICK;

	uint64_t range = ns / 4 < 64 ? ns / 4 + 1 : 64;

	return ns + calls++ * 37u % range - range / 2;
}

static void begin_cost(uint64_t ns, const void **back)
{
	if (ns <= entry_ns)
		return;
	if (!back || depth == MAX_NESTED) {
		spin_until(gs_now() + ns);
		return;
	}
	nested[depth].end = gs_now() + dithered(ns);
	nested[depth++].back = *back;
	*back = gs_call_return;
}

const void *gs_call_end(void)
{
	depth--;
	spin_until(nested[depth].end);
	return nested[depth].back;
}

void gs_call_empty(uint32_t index);

/* time_entry times calls with a cost but without work. The rest of the time is the entry's time. */
static void time_entry(struct watched *unused)
{
	const uint64_t calls = 64, cost_ns = 200;
	uint64_t least = UINT64_MAX;

	unused->cost_ns = cost_ns;
	for (int batch = 0; batch < 40; batch++) {
		uint64_t before = gs_now(), took;

		for (uint64_t i = 0; i < calls; i++)
			gs_call_empty((uint32_t)gs_call_count);
		took = gs_now() - before;
		least = took < least ? took : least;
	}
	entry_ns = least / calls - cost_ns;
}

int gs_calls_load(const struct gs_driver *driver, const char *first)
{
	struct watched *all;
	int index = gs_call_find(first);

	if (atomic_load(&watched) || (!driver->cost_count && !driver->failure_count))
		return 0;
	all = calloc(gs_call_count + 1, sizeof(*all)); /* the last entry is for time_entry() */
	if (!all)
		abort(); /* a test must not pass without its requested failures */
	fill(all, driver);
	profile = driver;
	atomic_store(&watched, all);
	time_entry(&all[gs_call_count]);
	__atomic_store_n(&gs_calls_watched, 1, __ATOMIC_RELEASE);
	return index >= 0 ? gs_call_begin((uint32_t)index, NULL) : 0;
}

void gs_calls_count(uint64_t *to)
{
	atomic_store(&counter, to);
	if (to)
		__atomic_store_n(&gs_calls_watched, 1, __ATOMIC_RELEASE);
}

/* applies reports whether a failure applies to a call after `before` calls of the same name. */
static bool applies(const struct gs_failure *failure, uint32_t before)
{
	return before >= failure->after &&
	       (!failure->count || before - failure->after < failure->count);
}

int gs_call_begin(uint32_t index, const void **back)
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
		begin_cost(call->cost_ns, back);
	if (!call->failures)
		return 0;
	before = atomic_fetch_add(&call->calls, 1);
	for (uint32_t i = 0; i < GS_MAX_FAILURES; i++)
		if ((call->failures & 1u << i) && applies(&profile->failures[i], before))
			return profile->failures[i].result;
	return 0;
}
