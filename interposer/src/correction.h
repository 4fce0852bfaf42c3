// SPDX-License-Identifier: Apache-2.0

// Charges by estimate, and their correction.
//
// Most memory is charged by what the driver takes for it. Contexts and modules are
// charged by an upper estimate, and empty granules of linear memory stay charged for a
// while, as the driver may keep them. The sum of all charges is what is known; the agent
// measures what is physically held. The difference corrects the charge:
//
//   charge = known + unseen - credit
//
// unseen is what the process holds beyond what is known. credit is what it was found
// not to hold, and never more than what is charged by estimate now: a measurement can
// show an estimate to be too large, nothing else. What of it belongs to which estimate
// is not known. So where something that was charged by estimate ends, the credit
// shrinks by all of its estimate first: what is released then is less than was held,
// until the next measurement.

#ifndef VG_CORRECTION_H
#define VG_CORRECTION_H

#include "state.h"

// vg_estimate_made notes a charge by estimate, after it was made.
void vg_estimate_made(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_estimate_gone notes that one has ended, and returns the part of it that must not be
// released: it went out of the credit.
uint64_t vg_estimate_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_estimate_again notes that so much of the credit was charged again.
void vg_estimate_again(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_estimate_credit is what an estimate of this size would take of the credit.
uint64_t vg_estimate_credit(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_uncertain_made and vg_uncertain_gone count what is charged in full though it may be
// elsewhere now, or be taken later: managed memory, and what kernels may need of the device's
// heap and stacks. What of it is not held makes no credit.
void vg_uncertain_made(struct vg_state *state, uint32_t device, uint64_t bytes);
void vg_uncertain_gone(struct vg_state *state, uint32_t device, uint64_t bytes);

// vg_correction_doubt withdraws the credit, and gives none as long as there are contexts:
// some of what is charged may have ended unnoticed, and would be released a second time.
void vg_correction_doubt(struct vg_state *state, uint32_t device);

// vg_context_began and vg_context_ended count contexts. With the last one goes what is
// unseen, as the driver has no other place for it.
void vg_context_began(struct vg_state *state, uint32_t device);
void vg_context_ended(struct vg_state *state, uint32_t device);

// vg_measured is what the agent measured of this process on a GPU.
struct vg_measured {
	uint64_t calls;    // vg_state.calls, when none was under way
	uint64_t physical; // bytes
	uint64_t pools;    // of these in pools, by the driver
};

// vg_correct corrects the charge, and returns whether it did: it does not where a call
// has begun since, which may have changed what is known.
bool vg_correct(struct vg_state *state, uint32_t device, const struct vg_measured *measured);

#endif
