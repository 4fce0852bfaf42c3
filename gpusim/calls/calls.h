// SPDX-License-Identifier: Apache-2.0
/*
 * What happens to a call of a library beside its function: it may fail, or take
 * its time, as the profile says (driver.h). Every exported function is
 * entered through a few instructions (entry.S) that come here where the
 * profile names any call, and else go straight to the function.
 */
#ifndef GPUSIM_CALLS_H
#define GPUSIM_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "driver.h"

/* The library's exported functions by index: a list in the order of strcmp. */
extern const char *const gs_call_names[];
extern const size_t gs_call_count;

/* Not 0: calls come by gs_call_begin first. */
extern unsigned char gs_calls_watched __attribute__((visibility("hidden")));

/*
 * Takes over what the profile says of calls, once per process, when its first call
 * has opened the state. Returns what that call is to return if it was made before
 * its entry could know of the profile, else 0.
 */
int gs_calls_load(const struct gs_driver *driver, const char *first);

/* Has every call counted there, from now on; NULL: none is. */
void gs_calls_count(uint64_t *counter);

/*
 * Returns 0 where the function is to run, else the call's result. Called by the entries,
 * with the place of the return address: that of a call which costs something becomes
 * gs_call_return, which calls gs_call_end. NULL: the whole cost passes before the function.
 */
int gs_call_begin(uint32_t index, const void **back);

/* Lets the rest of the cost pass; returns where the call came from. */
const void *gs_call_end(void);

/* The index of a call, or -1. */
int gs_call_find(const char *name);

#endif
