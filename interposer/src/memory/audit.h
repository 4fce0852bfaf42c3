// SPDX-License-Identifier: Apache-2.0

// This header covers audits: the agent measures the memory that this process physically holds, and
// the interposer corrects the charge (correction.h). A process queries the agent a few times a
// second while it allocates, and before the interposer refuses memory. A process also queries the
// agent when the process waits for the GPU after a charge by estimate.
//
// A measurement counts only if no call that may change the process's memory was in progress during
// the measurement. Without an agent, an answer or a measurement, the charge does not change.

#ifndef VG_AUDIT_H
#define VG_AUDIT_H

#include "state.h"

// vg_audit_start records that a process has just started and holds no memory to measure yet.
void vg_audit_start(struct vg_state *state);

// vg_audit queries the agent if the last query was long enough ago. The caller is about to allocate
// `bytes`, and has not yet called vg_calls_begin.
void vg_audit(struct vg_state *state, uint64_t bytes);

// vg_audit_refusal queries the agent before memory is refused, if the process's memory may have
// changed since the last answer. vg_audit_refusal reports whether a new answer has corrected a
// charge.
bool vg_audit_refusal(struct vg_state *state);

// vg_audit_last queries the agent before the last context on a GPU may end, if exported memory
// stays charged on that GPU. The agent cannot measure a process without a context.
void vg_audit_last(struct vg_state *state);

// vg_audit_doubt queries the agent if a charge by estimate was made or ended since the last answer.
void vg_audit_doubt(struct vg_state *state);

#endif
