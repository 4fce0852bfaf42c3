// SPDX-License-Identifier: Apache-2.0

#ifndef VG_TEST_RESERVE_H
#define VG_TEST_RESERVE_H

#include "pages/reserve.h"

// test_reserve reserves and settles `bytes`, and reports whether the limit had room.
static inline bool test_reserve(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	bool held = vg_reserve_hold(pages, device, bytes);

	if (held)
		vg_reserve_settle(pages, device, bytes, bytes);
	return held;
}

#endif
