// SPDX-License-Identifier: Apache-2.0

// This header covers charges by estimate, and their correction.
//
// Most memory is charged at the amount that the driver takes. Contexts and modules are
// charged by an upper estimate. Empty granules of linear memory stay charged for a while,
// because the driver may keep them. `known` is the sum of these charges. The agent
// measures the memory that the process physically holds, and the difference corrects the
// charge:
//
//   charge = known + unseen - credit
//
// `unseen` is the memory that the process holds beyond `known`. `credit` is the part of `known`
// that the process was found not to hold. The credit never exceeds the current charge by estimate:
// a measurement can only show that an estimate is too large, not which one. When a charge by
// estimate ends, the credit therefore shrinks first, by all of that estimate. Less is released than
// was held, until the next measurement.
//
// A process without a context cannot be measured. Exported memory and libraries stay charged when
// the last context ends. The measurement does not show which part of the bytes belongs to the
// context. Therefore the credit shrinks by the context's estimate, as above. The field `again`
// holds that part of the credit. The next context holds no more than the last one did. When it
// begins, `again` returns to the credit, so that the process is charged as before and not for both
// contexts.

#ifndef VG_CORRECTION_H
#define VG_CORRECTION_H

#include "state.h"

// vg_correction_estimate_made records a charge by estimate, after it was made.
void vg_correction_estimate_made(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_export_kept records that exported memory was released. The memory's charge stays,
// as an estimate.
void vg_correction_export_kept(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_export_outlives reports whether exported memory stays charged on a GPU on which
// the process has its last context.
bool vg_correction_export_outlives(struct vg_state *state);

// vg_correction_estimate_gone records that a charge by estimate has ended.
// vg_correction_estimate_gone returns the part that must not be released, because it reduced the
// credit.
uint64_t vg_correction_estimate_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_withdraw reduces the credit by up to `bytes` and returns by how much. The caller
// charges that much again, or does not release it, because the process may hold it now.
uint64_t vg_correction_withdraw(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_credit returns how much an estimate of this size would reduce the credit.
uint64_t vg_correction_credit(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_uncertain_made and vg_correction_uncertain_gone count memory that is charged in
// full, although the agent may not measure it here. Such memory may lie elsewhere, count for
// another process, or be taken later. Examples are managed memory, imports, and the parts of the
// device's heap and stacks that kernels may need. Such memory earns no credit while it is not held.
void vg_correction_uncertain_made(struct vg_state *state, uint32_t device, uint64_t bytes);
void vg_correction_uncertain_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_doubt withdraws the credit and grants none while there are contexts. Some
// charges may have ended unnoticed, and a credit would release them a second time.
void vg_correction_doubt(struct vg_state *state, uint32_t device);

// vg_correction_context_began and vg_correction_context_ended count contexts. The last one to end
// clears unseen, because the driver holds nothing outside of contexts.
// vg_correction_context_ended also does what vg_correction_estimate_gone does, for a context of
// `bytes`. `whole` is false for a green context, which may hold less than the next context.
// All other charges that end with the context must have ended before.
void vg_correction_context_began(struct vg_state *state, uint32_t device);
uint64_t vg_correction_context_ended(struct vg_state *state, uint32_t device, uint64_t bytes, bool whole);

// vg_correction_context_again returns how much of the estimate of a new context is charged already,
// and counts that part as charged by estimate. vg_correction_context_failed undoes this.
uint64_t vg_correction_context_again(struct vg_state *state, uint32_t device, uint64_t bytes);
void vg_correction_context_failed(struct vg_state *state, uint32_t device, uint64_t again);

// vg_measured is the agent's measurement of this process on a GPU.
struct vg_measured {
	uint64_t calls;    // vg_state.calls at a time without calls under way
	uint64_t physical; // bytes
	uint64_t pools;    // part of `physical` in pools, according to the driver
};

// vg_correction_apply corrects the charge, and reports whether it did. vg_correction_apply changes
// nothing if a call that may have changed the charges has begun since the measurement.
bool vg_correction_apply(struct vg_state *state, uint32_t device, const struct vg_measured *measured);

#endif
