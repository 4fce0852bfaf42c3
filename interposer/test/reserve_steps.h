// SPDX-License-Identifier: Apache-2.0

// This header compiles reserve.c for a test that explores orders of steps (explorer.h). Each access of
// reserve.c to the shared page is a step, and the clock stands still unless let_time_pass advances it.
// Include this header in one file of a program.

#ifndef VG_TEST_RESERVE_STEPS_H
#define VG_TEST_RESERVE_STEPS_H

#include "pages/reserve.h"

#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/now.h"
#include "check.h"
#include "explorer.h"
#include "fixture.h"
#include "pages/limits.h"
#include "pages/slot.h"

static bool step_at_limits; // the limits change during the test
static uint64_t clock_now;

static int nap_until_change(const struct timespec *nap)
{
	CHECK(nap->tv_nsec > 0);
	explorer_nap();
	return 0;
}

static void look_at_limits(void)
{
	if (step_at_limits)
		explorer_step();
}

#define vg_load(field) (explorer_step(), vg_load(field))
#define vg_add(field, value) (explorer_change(), vg_add(field, value))
#define vg_sub(field, value) (explorer_change(), vg_sub(field, value))
#define vg_slot_used(pages, slot, device) (explorer_step(), vg_slot_used(pages, slot, device))
#define vg_limits_memory(pages, device) (look_at_limits(), vg_limits_memory(pages, device))
#define vg_slots_reap(pages, device) true // no process has died
#define vg_now() clock_now
#define nanosleep(nap, rest) nap_until_change(nap)
#include "pages/reserve.c"
#undef vg_load
#undef vg_add
#undef vg_sub
#undef vg_slot_used
#undef vg_limits_memory
#undef vg_slots_reap
#undef vg_now
#undef nanosleep

static void let_time_pass(void)
{
	clock_now += vg_patience_ns + 1;
}

#endif
