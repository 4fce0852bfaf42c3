// SPDX-License-Identifier: Apache-2.0

// This header declares functions for all kinds of contexts.

#ifndef VG_CONTEXT_H
#define VG_CONTEXT_H

#include "driver/driver.h"
#include "memory/state.h"

// vg_context_estimate returns the charge for a context on this device.
uint64_t vg_context_estimate(CUdevice device);

// vg_context_take removes the entries that end with a context, and the context's own entry, from
// the table. The entries must be removed before the driver ends the context, because the driver may
// reuse the handle for another thread at once. vg_context_keep restores the entries if the context
// still exists. vg_context_drop releases the entries.
struct vg_entry *vg_context_take(struct vg_state *state, CUcontext context);
void vg_context_keep(struct vg_state *state, CUcontext context, struct vg_entry *entries);
void vg_context_drop(struct vg_state *state, CUcontext context, struct vg_entry *entries);

// vg_context_move makes the entries of a green context end with the context `to`.
void vg_context_move(struct vg_state *state, CUcontext from, CUcontext to);

#endif
