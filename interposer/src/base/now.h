// SPDX-License-Identifier: Apache-2.0

#ifndef VG_NOW_H
#define VG_NOW_H

#include <stdint.h>

// vg_now returns CLOCK_MONOTONIC in nanoseconds.
uint64_t vg_now(void);

#endif
