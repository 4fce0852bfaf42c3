// SPDX-License-Identifier: Apache-2.0

#include "unmeasured.h"

#include "pages/pages.h"

// vg_unmeasured_note writes the start of unmeasured work to the slot. If this process dies, another
// process charges that work (vg_slots_settle).
static void vg_unmeasured_note(struct vg_unmeasured *unmeasured, const struct vg_pages *pages, uint32_t device)
{
	if (unmeasured->count == 0)
		unmeasured->since = 0;
	if (pages->slot != vg_no_slot)
		vg_store(&vg_slot_device(pages, (uint32_t)pages->slot, device)->unmeasured_ns,
			 unmeasured->since);
}

void vg_unmeasured_begin(struct vg_unmeasured *unmeasured, const struct vg_pages *pages, uint32_t device,
			 uint64_t now)
{
	unmeasured->count++;
	if (unmeasured->since)
		return;
	unmeasured->since = now;
	vg_unmeasured_note(unmeasured, pages, device);
}

void vg_unmeasured_end(struct vg_unmeasured *unmeasured, const struct vg_pages *pages, uint32_t device)
{
	if (--unmeasured->count == 0)
		vg_unmeasured_note(unmeasured, pages, device);
}

int64_t vg_unmeasured_lose(struct vg_unmeasured *unmeasured, uint64_t since, int64_t charged, uint64_t now)
{
	uint64_t from = since > unmeasured->settled ? since : unmeasured->settled;

	unmeasured->settled = now > unmeasured->settled ? now : unmeasured->settled;
	return (now > from ? (int64_t)(now - from) : 0) - charged;
}
