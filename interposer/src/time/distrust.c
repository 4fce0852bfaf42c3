// SPDX-License-Identifier: Apache-2.0

#include "distrust.h"

#include "pages/pages.h"

static struct vg_distrust *vg_distrust_of(const struct vg_meter *meter)
{
	return &meter->pages->usage->header.distrust[meter->device];
}

void vg_distrust_lapsed(const struct vg_meter *meter, int64_t ns)
{
	if (ns > 0)
		__atomic_fetch_add(&vg_distrust_of(meter)->uncharged, 1, __ATOMIC_RELAXED);
}

void vg_distrust_aliased(const struct vg_meter *meter)
{
	__atomic_fetch_add(&vg_distrust_of(meter)->aliased, 1, __ATOMIC_RELAXED);
}

void vg_distrust_follow(const struct vg_meter *meter)
{
	const struct vg_stretches *seen = &meter->probe.seen;

	if (seen->drift_ppb)
		__atomic_store_n(&vg_distrust_of(meter)->drift_ppb, (uint32_t)seen->drift_ppb, __ATOMIC_RELAXED);
	if (seen->slice_ns)
		__atomic_store_n(&vg_distrust_of(meter)->slice_ns, seen->slice_ns, __ATOMIC_RELAXED);
}
