// SPDX-License-Identifier: Apache-2.0

// This header declares events and captures that replace the driver's. The replacement counts
// events, and takes their times from the test. No event may be recorded into a capture.

#ifndef VG_TEST_EVENTS_H
#define VG_TEST_EVENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

// events_install installs the events. `reached` returns the time at which the GPU completes the
// launched work, which becomes the time of a recorded event. `now` returns the program's time. An
// event is not complete before its time.
void events_install(uint64_t (*reached)(void), uint64_t (*now)(void));

extern int events_count;         // existing events
extern bool events_capturing;    // all streams are being captured
extern _Atomic int events_asked_capture; // number of queries whether a stream is captured
extern _Atomic int events_recorded;      // number of recorded events

#endif
