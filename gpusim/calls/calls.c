// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

struct watched {
	uint64_t cost_ns;
	const struct gs_failure *failure;
	_Atomic uint32_t calls;
};

unsigned char gs_calls_watched;
static struct watched *watched; /* by index */

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

void gs_calls_load(const struct gs_driver *driver)
{
	struct watched *all;

	if (watched || (!driver->cost_count && !driver->failure_count))
		return;
	all = calloc(gs_call_count, sizeof(*all));
	if (!all)
		return;
	for (uint32_t i = 0; i < driver->cost_count; i++) {
		int index = gs_call_find(driver->costs[i].call);

		if (index >= 0)
			all[index].cost_ns = driver->costs[i].ns;
	}
	for (uint32_t i = 0; i < driver->failure_count; i++) {
		int index = gs_call_find(driver->failures[i].call);

		if (index >= 0)
			all[index].failure = &driver->failures[i];
	}
	watched = all;
	__atomic_store_n(&gs_calls_watched, 1, __ATOMIC_RELEASE);
}

/* A driver's calls keep the processor busy: a sleep would be far too long. */
static void spin(uint64_t ns)
{
	uint64_t end = gs_now() + ns;

	while (gs_now() < end)
		__builtin_ia32_pause();
}

int gs_call_begin(uint32_t index)
{
	struct watched *call = &watched[index];
	const struct gs_failure *failure = call->failure;
	uint32_t before;

	if (call->cost_ns)
		spin(call->cost_ns);
	if (!failure)
		return 0;
	before = atomic_fetch_add(&call->calls, 1);
	if (before < failure->after || (failure->count && before - failure->after >= failure->count))
		return 0;
	return failure->result;
}
