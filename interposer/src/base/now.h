// SPDX-License-Identifier: Apache-2.0

#ifndef VG_NOW_H
#define VG_NOW_H

#include <stdint.h>

// vg_now returns CLOCK_MONOTONIC in nanoseconds.
uint64_t vg_now(void);

// vg_now_set_clock sets the C library's clock_gettime. A program may define another function of
// this name, for example to change the time that the program sees.
void vg_now_set_clock(const void *clock);

#endif
