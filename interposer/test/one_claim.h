// SPDX-License-Identifier: Apache-2.0

// This header makes a test a process of a container with a limit of 100 MiB on one GPU, and one
// claim. The test simulates the agent that measures the process's memory.

#ifndef VG_TEST_ONE_CLAIM_H
#define VG_TEST_ONE_CLAIM_H

#include "check.h"
#include "memory/claim.h"
#include "memory/state.h"
#include "pages/held.h"

// one_claim_agent is the agent's answer.
struct one_claim_agent {
	enum vg_held_result answer;
	uint64_t bytes;
	unsigned questions;
};

static const uint64_t mib = UINT64_C(1) << 20;

extern struct one_claim_agent agent;
extern struct vg_state *state;
extern struct vg_claim claim;

// begin creates a new process. The agent does not answer.
void begin(void);

// end frees the entries that a test has left in the table.
void end(void);

// own returns the process's record of the GPU in its slot. under_way returns the number of the
// process's calls in progress.
struct vg_slot_device *own(void);
uint32_t under_way(void);

// charge claims and settles memory of this kind.
void charge(enum vg_kind kind, uint32_t way, uint64_t key, uint64_t owner, uint64_t bytes);

#endif
