// SPDX-License-Identifier: Apache-2.0

// Events and captures in place of the driver's: events are counted, and take the time from the
// test; into a capture, none may be recorded.

#ifndef VG_TEST_EVENTS_H
#define VG_TEST_EVENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

// events_install puts events in place. `reached` is the time at which the GPU has done what
// was launched, which an event takes that is recorded; `now` the program's, which may be
// earlier: then the event is not over yet.
void events_install(uint64_t (*reached)(void), uint64_t (*now)(void));

extern int events_count;         // that there are
extern bool events_capturing;    // all streams are being captured
extern _Atomic int events_asked_capture; // how often it was asked whether one is

#endif
