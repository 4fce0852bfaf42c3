// SPDX-License-Identifier: Apache-2.0

// This header covers charges by estimate, and their correction.
//
// The interposer charges most memory at the amount that the driver takes. The interposer charges
// contexts and modules by an upper estimate. Empty granules of linear memory stay charged, because
// the driver may keep empty granules. `known` is the sum of all these charges. The agent measures
// the memory that the process physically holds, and the difference corrects the charge:
//
//   charge = known + unseen - credit
//
// `unseen` is the memory that the process holds beyond `known`. `credit` is the part of `known`
// that the process does not hold, according to the measurement. The credit never exceeds the
// current charge by estimate. A measurement shows that some estimate is too large, but does not
// show which estimate. When a charge by estimate ends, the interposer therefore first subtracts the
// whole estimate from the credit. Until the next measurement, less memory is released than the
// process held.
//
// The agent cannot measure a process without a context. Exported memory and libraries stay charged
// when the last context ends. The measurement does not show which part of the bytes belongs to the
// context. Therefore the credit shrinks by the context's estimate. The field `again` holds the
// subtracted part of the credit. The next context holds no more memory than the last context. When
// the next context begins, `again` returns to the credit, so that the process is not charged for
// both contexts.

#ifndef VG_CORRECTION_H
#define VG_CORRECTION_H

#include "state.h"

// vg_correction_estimate_made records a charge by estimate, after the charge was made.
void vg_correction_estimate_made(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_export_kept records that exported memory was released. The memory's charge stays,
// as an estimate.
void vg_correction_export_kept(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_export_outlives reports whether exported memory stays charged on a GPU on which
// the process has its last context.
bool vg_correction_export_outlives(struct vg_state *state);

// vg_correction_estimate_gone records that a charge by estimate has ended.
// vg_correction_estimate_gone returns the part of the charge that reduced the credit. The caller
// must not release that part.
uint64_t vg_correction_estimate_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_withdraw reduces the credit by at most `bytes`, and returns the reduction. The
// process may hold that memory now: the caller charges the returned bytes again, or does not
// release them.
uint64_t vg_correction_withdraw(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_credit returns the amount by which an estimate of this size would reduce the
// credit.
uint64_t vg_correction_credit(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_uncertain_made and vg_correction_uncertain_gone count uncertain memory, which is
// charged in full although the agent may not measure it in this process. Uncertain memory may be in
// another place, count for another process, or be taken later. Examples are managed memory,
// imports, and the parts of the device's heap and stacks that kernels may need. Uncertain memory
// that the process does not hold adds no credit.
void vg_correction_uncertain_made(struct vg_state *state, uint32_t device, uint64_t bytes);
void vg_correction_uncertain_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_doubt withdraws the credit, and prevents further credit until the last context
// ends. Some charges may have ended unnoticed, and a credit would release these charges a second
// time.
void vg_correction_doubt(struct vg_state *state, uint32_t device);

// vg_correction_context_began and vg_correction_context_ended count contexts. The end of the last
// context clears `unseen`, because the driver holds no memory outside of contexts.
// vg_correction_context_ended also ends the charge of a context of `bytes`, like
// vg_correction_estimate_gone. `whole` is false for a green context, which may hold less than the
// next context. All other charges that end with the context must end before that call.
void vg_correction_context_began(struct vg_state *state, uint32_t device);
uint64_t vg_correction_context_ended(struct vg_state *state, uint32_t device, uint64_t bytes, bool whole);

// vg_correction_context_again returns the part of a new context's estimate that is charged already,
// and counts that part as charged by estimate. vg_correction_context_failed undoes
// vg_correction_context_again.
uint64_t vg_correction_context_again(struct vg_state *state, uint32_t device, uint64_t bytes);
void vg_correction_context_failed(struct vg_state *state, uint32_t device, uint64_t again);

// vg_measured is the agent's measurement of this process on a GPU.
struct vg_measured {
	uint64_t calls;    // vg_state.calls at a time without calls in progress
	uint64_t physical; // bytes
	uint64_t pools;    // part of `physical` in pools, according to the driver
};

// vg_correction_apply corrects the charge, and reports whether it corrected the charge.
// vg_correction_apply changes nothing if a call that may change the charges has begun since the
// measurement.
bool vg_correction_apply(struct vg_state *state, uint32_t device, const struct vg_measured *measured);

#endif
