// SPDX-License-Identifier: Apache-2.0

// When this process has the agent measure what it physically holds, to correct what it
// is charged with (correction.h): a process that allocates asks a few times a second,
// before it is refused memory, and where it waits for the GPU after something was
// charged by estimate.
//
// A measurement counts only if no call of this process that may change what it holds
// was under way meanwhile. Without an agent, an answer, or a measurement, the charge
// stays as it is.

#ifndef VG_AUDIT_H
#define VG_AUDIT_H

#include "state.h"

// vg_audit_start: a process that has just begun has nothing to measure yet.
void vg_audit_start(struct vg_state *state);

// vg_audit asks if the last question was long enough ago. The caller is about to ask the
// driver for `bytes`, and has not begun.
void vg_audit(struct vg_state *state, uint64_t bytes);

// vg_audit_refusal asks, if anything may have changed since the last answer, before
// memory is refused. It returns whether there is a new answer.
bool vg_audit_refusal(struct vg_state *state);

// vg_audit_last asks before the last context on a GPU may end, if exported memory stays charged
// there: without a context this process cannot be measured.
void vg_audit_last(struct vg_state *state);

// vg_audit_doubt asks where something was charged by estimate since the last answer, or
// has ended.
void vg_audit_doubt(struct vg_state *state);

#endif
