// SPDX-License-Identifier: Apache-2.0

#include "others.h"

#include "base/number.h"

// vg_others_look sets `at` to the vg_now at which the agent last counted. vg_others_look sets `ppm`
// to the part of the GPU's time that other containers may have, in parts per million.
// vg_others_look reports whether an agent counts other containers' time.
static bool vg_others_look(const struct vg_pages *pages, uint32_t device, uint64_t *at, uint32_t *ppm)
{
	uint64_t word = vg_load(&pages->limits->others_looks[device]);

	*ppm = (uint32_t)vg_min(word & ((UINT64_C(1) << VG_LEASE_PPM_BITS) - 1), VG_PPM);
	*at = word >> VG_LEASE_PPM_BITS << VG_LEASE_UNIT_BITS;
	return word != 0;
}

uint64_t vg_others_charged(const struct vg_pages *pages, uint32_t device, uint64_t now)
{
	const struct vg_slot_device *own = vg_slot_device(pages, (uint32_t)pages->slot, device);
	uint64_t charged = vg_load(&pages->limits->others[device]) +
			   vg_load(&pages->usage->header.devices[device].spent_ns) - vg_load(&own->gpu_time_ns);
	uint64_t at;
	uint32_t ppm;

	if (!vg_others_look(pages, device, &at, &ppm) || now <= at + vg_others_late_ns)
		return charged;
	return charged + (now - at) / 1000 * ppm / 1000;
}

// vg_others_here reports whether another process of the container may use the GPU. A killed process
// counts until its slot is emptied.
static bool vg_others_here(const struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = __atomic_load_n(&pages->usage->header.high_water, __ATOMIC_RELAXED);

	for (uint32_t i = 0; i < slots && i < VG_MAX_SLOTS; i++)
		if ((int)i != pages->slot && vg_load(&vg_slot_device(pages, i, device)->context_bytes))
			return true;
	return false;
}

bool vg_others_none(const struct vg_pages *pages, uint32_t device)
{
	uint64_t at;
	uint32_t ppm;

	return vg_others_look(pages, device, &at, &ppm) && ppm == 0 && !vg_others_here(pages, device);
}

int64_t vg_others_deduct(uint64_t *deducted, uint64_t charged, int64_t want)
{
	int64_t left = (int64_t)(charged - *deducted);
	int64_t most = want + vg_others_late_ns;
	int64_t part;

	if (want <= 0)
		return 0;
	if (left < 0) // after an absence, the agent counts less than was assumed
		left = 0;
	left = left < most ? left : most;
	part = want < left ? want : left;
	*deducted = charged - (uint64_t)(left - part);
	return part;
}
