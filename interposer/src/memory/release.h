// SPDX-License-Identifier: Apache-2.0

// This header covers the release of a charge after the driver has freed the object.

#ifndef VG_RELEASE_H
#define VG_RELEASE_H

#include "driver/driver.h"
#include "state.h"

// vg_release releases an entry's charge and frees the entry. vg_release_ended releases the entry
// after its context has ended, so that the driver keeps none of the memory.
void vg_release(struct vg_state *state, struct vg_entry *entry);
void vg_release_ended(struct vg_state *state, struct vg_entry *entry);

// VG_FREE is the body of a function that frees the object of a key. VG_FREE first removes the
// entry, because the driver may reuse the handle at once. VG_FREE restores the entry if the driver
// refuses.
#define VG_FREE(kind, key, call)                                                            \
	do {                                                                                \
		struct vg_state *state_ = vg_state_ready();                                 \
		struct vg_entry *entry_ = vg_release_begin(state_, kind, key);              \
		CUresult result_ = call;                                                    \
                                                                                            \
		vg_release_finish(state_, entry_, result_);                                 \
		return result_;                                                             \
	} while (0)

struct vg_entry *vg_release_begin(struct vg_state *state, enum vg_kind kind, uint64_t key);
void vg_release_finish(struct vg_state *state, struct vg_entry *entry, CUresult result);

#endif
