// SPDX-License-Identifier: Apache-2.0

// What the driver takes without a call that we account: local memory that a
// kernel needs, workspaces, code that is loaded late. A process that allocates
// compares from time to time what it physically holds with what is accounted, and
// charges the difference, so that the next allocations leave room for it.

#ifndef VG_AUDIT_H
#define VG_AUDIT_H

#include "state.h"

// vg_audit looks, if the last look was long enough ago, and no other call of
// this process is under way but the caller's own, which asks for `bytes`.
void vg_audit(struct vg_state *state, uint32_t device, uint64_t bytes);

#endif
