// SPDX-License-Identifier: Apache-2.0
/* This file records XIDs, the errors that the driver writes to the kernel log. */
#include "state.h"

void gs_add_xid(struct gs_state *state, uint32_t gpu, uint32_t xid)
{
	uint64_t seq = state->xid_seq + 1;

	state->xids[seq % GS_XID_RING] =
		(struct gs_xid){.seq = seq, .time_ns = gs_now(), .gpu = gpu, .xid = xid};
	state->xid_seq = seq;
}
