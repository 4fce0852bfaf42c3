// SPDX-License-Identifier: Apache-2.0

// Audits: the agent measures what this process physically holds, which corrects the charge
// (correction.h). A process asks a few times a second while it allocates, before it is refused
// memory, and when it waits for the GPU after a charge by estimate.
//
// A measurement counts only if no call of this process that may change what it holds was under way
// meanwhile. Without an agent, an answer or a measurement, the charge stays as it is.

#ifndef VG_AUDIT_H
#define VG_AUDIT_H

#include "state.h"

// vg_audit_start records that a process has just begun and has nothing to measure yet.
void vg_audit_start(struct vg_state *state);

// vg_audit asks if the last question was long enough ago. The caller is about to ask the driver for
// `bytes` and has not begun its call.
void vg_audit(struct vg_state *state, uint64_t bytes);

// vg_audit_refusal asks before memory is refused, if anything may have changed since the last
// answer. It reports whether there is a new answer.
bool vg_audit_refusal(struct vg_state *state);

// vg_audit_last asks before the last context on a GPU may end, if exported memory stays charged
// there: a process without a context cannot be measured.
void vg_audit_last(struct vg_state *state);

// vg_audit_doubt asks if a charge by estimate was made or ended since the last answer.
void vg_audit_doubt(struct vg_state *state);

#endif
