// SPDX-License-Identifier: Apache-2.0

// Phases: the GPUs of one container are held back together and let go together.
// A kernel on one of them may wait, spinning, for its peer on another: were
// that one held back alone, the first would burn its allowance for nothing, and
// then the other way round.
//
// A phase is open while all GPUs have allowance. When one has none left it
// closes for all, but each may still have as many launches as the one that had
// the most, in debt if need be: those are the peers of what was let through. It
// opens when all have allowance again. GPUs that do not work in step need not wait
// for each other once they have saved up some allowance.

#ifndef VG_PHASE_H
#define VG_PHASE_H

#include "pages.h"

struct vg_phase {
	bool behind;   // a peer was let through: this GPU's work must go, too
	uint64_t wait; // until all GPUs may have allowance, in ns; 0: go on
};

// vg_phase_look says what holds for one of the container's `count` GPUs with
// these parts of their time.
struct vg_phase vg_phase_look(struct vg_usage_header *header, const uint32_t *ppm, uint32_t count,
			      uint32_t device, uint64_t now);

// vg_phase_launch counts work that was let through to one of them.
void vg_phase_launch(struct vg_usage_header *header, uint32_t count, uint32_t device);

#endif
