// SPDX-License-Identifier: Apache-2.0

#include "distrust.h"

#include "fit.h"
#include "meter.h"
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

void vg_distrust_unpassed(const struct vg_meter *meter, CUevent end, uint64_t recorded)
{
	float ms = 0;

	if (!meter->probe.base || VG_CALL(cuEventElapsedTime, &ms, meter->probe.base, end))
		return;
	if (vg_fit_aliases(&meter->probe, (int64_t)((double)ms * 1e6), recorded))
		__atomic_fetch_add(&vg_distrust_of(meter)->aliased, 1, __ATOMIC_RELAXED);
}

void vg_distrust_follow(struct vg_meter *meter)
{
	int32_t ppb;
	uint32_t turn;

	if (!vg_fit_follow(&meter->fit, &meter->probe, &ppb, &turn))
		return;
	if (ppb)
		__atomic_store_n(&vg_distrust_of(meter)->drift_ppb, (uint32_t)ppb, __ATOMIC_RELAXED);
	if (turn)
		__atomic_store_n(&vg_distrust_of(meter)->slice_ns, turn, __ATOMIC_RELAXED);
}
