// SPDX-License-Identifier: Apache-2.0

#include "physical.h"

#include <stdlib.h>

#include "correction.h"
#include "release.h"

struct vg_entry *vg_physical_use(struct vg_entry *entry, void *context)
{
	struct vg_physical_use *use = context;

	if (entry) {
		use->physical = entry->object;
		atomic_fetch_add(&use->physical->references, 1);
	}
	return entry;
}

void vg_physical_put(struct vg_state *state, struct vg_physical *physical)
{
	struct vg_entry *charge;

	if (atomic_fetch_sub(&physical->references, 1) > 1)
		return;
	if (physical->imported)
		vg_correction_uncertain_gone(state, physical->device, physical->bytes);
	charge = atomic_load(&physical->exports) ? NULL : calloc(1, sizeof *charge);
	if (charge) {
		charge->kind = VG_PHYSICAL;
		charge->device = physical->device;
		charge->bytes = physical->bytes;
		vg_release(state, charge);
	} else {
		vg_correction_export_kept(state, physical->device, physical->bytes);
	}
	free(physical);
}
