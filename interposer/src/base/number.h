// SPDX-License-Identifier: Apache-2.0

// This header declares arithmetic of sizes and times.

#ifndef VG_NUMBER_H
#define VG_NUMBER_H

#include <stdint.h>

#define VG_MIB (UINT64_C(1) << 20)

static inline uint64_t vg_add_saturating(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

static inline uint64_t vg_round_up(uint64_t value, uint64_t unit)
{
	return vg_add_saturating(value, unit - 1) / unit * unit;
}

static inline uint64_t vg_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t vg_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

// vg_least and vg_most are vg_min and vg_max for signed numbers.
static inline int64_t vg_least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t vg_most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

#endif
