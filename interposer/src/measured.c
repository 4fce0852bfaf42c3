// SPDX-License-Identifier: Apache-2.0

#include "measured.h"

CUresult vg_measured_begin(struct vg_measured *call, CUdevice device, uint32_t way,
			   struct vg_expected expected)
{
	struct vg_state *state = vg_ready_state();
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	vg_lock(&state->contexts);
	call->unmeasured = expected.unmeasured;
	result = vg_claim_on(&call->claim, device, way, expected.claimed);
	if (result)
		vg_unlock(&state->contexts);
	else
		vg_snapshot_take(state, call->claim.device, &call->before);
	return result;
}

uint64_t vg_measured_grown(struct vg_measured *call)
{
	struct vg_state *state = call->claim.state;
	bool context = call->claim.way == VG_WAY_CONTEXT;
	struct vg_snapshot after;
	uint64_t bytes = 0;

	if (!context && !state->nvml_pid)
		return call->unmeasured;
	vg_snapshot_take(state, call->claim.device, &after);
	if (!state->nvml_pid)
		vg_physical_recognise(state, &call->before, &after);
	if (vg_grown(state, &call->before, &after, &bytes) || (context && bytes < vg_least_context))
		return call->unmeasured;
	return bytes;
}

void vg_measured_end(const struct vg_measured *call)
{
	vg_unlock(&call->claim.state->contexts);
}
