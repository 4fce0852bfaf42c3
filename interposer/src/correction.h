// SPDX-License-Identifier: Apache-2.0

// Charges by estimate, and their correction.
//
// Most memory is charged by what the driver takes for it. Contexts and modules are
// charged by an upper estimate. Empty granules of linear memory stay charged for a while,
// because the driver may keep them. `known` is the sum of these charges. The agent
// measures what the process physically holds, and the difference corrects the charge:
//
//   charge = known + unseen - credit
//
// unseen is what the process holds beyond `known`. credit is the part of `known` that the
// process was found not to hold. It never exceeds the current charge by estimate: a
// measurement can only show that an estimate is too large. It does not show which one.
// Therefore, when something that was charged by estimate ends, the credit shrinks by all
// of its estimate first. Less is released than was held, until the next measurement.
//
// A process without a context cannot be measured. Exported memory and libraries stay charged
// when the last context ends. How much of the measured bytes was theirs and how much was the
// context's is not known. So the credit shrinks by the context's estimate, as above. This part
// of the credit is `again`. The next context holds no more than the last one did: when it
// begins, `again` returns to the credit and the process is charged as before, not for both.

#ifndef VG_CORRECTION_H
#define VG_CORRECTION_H

#include "state.h"

// vg_estimate_made notes a charge by estimate, after it was made.
void vg_estimate_made(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_export_kept notes that exported memory was released. Its charge stays, as an estimate.
void vg_export_kept(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_export_outlives reports whether exported memory stays charged on a GPU on which the process
// has its last context.
bool vg_export_outlives(struct vg_state *state);

// vg_estimate_gone notes that one has ended, and returns the part of it that must not be
// released: it went out of the credit.
uint64_t vg_estimate_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_credit_withdraw reduces the credit by up to `bytes` and returns by how much. The caller
// charges as much again, or does not release it, as the process may hold it now.
uint64_t vg_credit_withdraw(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_estimate_credit is what an estimate of this size would take of the credit.
uint64_t vg_estimate_credit(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_uncertain_made and vg_uncertain_gone count what is charged in full though it may be
// elsewhere now, be another process's by the agent's measure, or be taken later: managed memory,
// imports, and what kernels may need of the device's heap and stacks. It earns no credit while it is not held.
void vg_uncertain_made(struct vg_state *state, uint32_t device, uint64_t bytes);
void vg_uncertain_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_doubt withdraws the credit and grants none while there are contexts. Some
// charges may have ended unnoticed, and a credit would release them a second time.
void vg_correction_doubt(struct vg_state *state, uint32_t device);

// vg_context_began and vg_context_ended count contexts. The last one to end clears unseen,
// because the driver holds nothing outside of contexts. vg_context_ended also does what
// vg_estimate_gone does, for a context of `bytes`. `whole` is false for a green context, which
// may hold less than the next context. All else that ends with the context must be gone before.
void vg_context_began(struct vg_state *state, uint32_t device);
uint64_t vg_context_ended(struct vg_state *state, uint32_t device, uint64_t bytes, bool whole);

// vg_context_again returns how much of the estimate of a context that is to begin is charged
// already, and counts it as charged by estimate. vg_context_failed undoes that.
uint64_t vg_context_again(struct vg_state *state, uint32_t device, uint64_t bytes);
void vg_context_failed(struct vg_state *state, uint32_t device, uint64_t again);

// vg_measured is what the agent measured of this process on a GPU.
struct vg_measured {
	uint64_t calls;    // vg_state.calls, when none was under way
	uint64_t physical; // bytes
	uint64_t pools;    // of these in pools, by the driver
};

// vg_correct corrects the charge, and reports whether it did. It does not if a call has
// begun since that may have changed the charges.
bool vg_correct(struct vg_state *state, uint32_t device, const struct vg_measured *measured);

#endif
