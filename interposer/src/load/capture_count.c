// SPDX-License-Identifier: Apache-2.0

#include "capture_count.h"

_Atomic unsigned vg_capture_count;

void vg_capture_count_unknown(void)
{
	atomic_fetch_add(&vg_capture_count, 1);
}
