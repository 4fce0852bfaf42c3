// SPDX-License-Identifier: Apache-2.0

// This header declares the number of captures of streams that may be open. The number may be too
// high, but is never too low. If the number is not 0, the driver must be queried about a stream.

#ifndef VG_CAPTURE_COUNT_H
#define VG_CAPTURE_COUNT_H

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic unsigned vg_capture_count;

static inline bool vg_capture_count_maybe(void)
{
	return atomic_load_explicit(&vg_capture_count, memory_order_relaxed) != 0;
}

// vg_capture_count_unknown counts a capture whose end the interposer will not notice. The
// interposer calls vg_capture_count_unknown when a program looks up an unknown function that may
// begin or end captures.
void vg_capture_count_unknown(void);

#endif
