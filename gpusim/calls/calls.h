// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers failures and costs of a library's calls. The profile sets both (driver.h).
 * Every exported function has an entry of a few instructions (entry.S). The entry calls this code
 * if the profile names any call, and otherwise jumps to the function.
 */
#ifndef GPUSIM_CALLS_H
#define GPUSIM_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "driver.h"

/* gs_call_names holds the library's exported functions by index, in the order of strcmp. */
extern const char *const gs_call_names[];
extern const size_t gs_call_count;

/* gs_calls_watched is not 0 if calls must first run gs_call_begin. */
extern unsigned char gs_calls_watched __attribute__((visibility("hidden")));

/*
 * gs_calls_load loads the profile's costs and failures, once per process, after the first call has
 * opened the state. gs_calls_load returns the result of the first call if the profile sets a
 * failure for that call. The call's entry ran before the profile was loaded, and could not return
 * the failure. Without such a failure, gs_calls_load returns 0.
 */
int gs_calls_load(const struct gs_driver *driver, const char *first);

/* gs_calls_count makes every later call count in this counter. NULL stops the counting. */
void gs_calls_count(uint64_t *counter);

/*
 * gs_call_begin returns 0 if the function must run, or the call's result if the call fails. The
 * entries call gs_call_begin with the place of the return address. For a call with a cost,
 * gs_call_begin replaces the return address by gs_call_return, which calls gs_call_end. If back is
 * NULL, the whole cost passes before the function runs.
 */
int gs_call_begin(uint32_t index, const void **back);

/* gs_call_end waits for the rest of the cost. gs_call_end returns the address of the caller. */
const void *gs_call_end(void);

/* gs_call_find returns the index of a call, or -1. */
int gs_call_find(const char *name);

#endif
