// SPDX-License-Identifier: Apache-2.0

// This header covers the number of captures of streams that may be open. The number may be too
// high, never too low: unless it is 0, the driver must be asked.

#ifndef VG_CAPTURE_COUNT_H
#define VG_CAPTURE_COUNT_H

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic unsigned vg_capture_count;

static inline bool vg_capture_count_maybe(void)
{
	return atomic_load_explicit(&vg_capture_count, memory_order_relaxed) != 0;
}

// vg_capture_count_unknown counts a capture whose end will not be seen. vg_capture_count_unknown is
// called when a program looks up a function that this library does not know and that may begin or
// end captures.
void vg_capture_count_unknown(void);

#endif
