// SPDX-License-Identifier: Apache-2.0

#ifndef VG_SLEEP_H
#define VG_SLEEP_H

#include <stdint.h>

// vg_sleep_until sleeps until `when`, a vg_now time, as exactly as the kernel permits.
void vg_sleep_until(uint64_t when);

#endif
