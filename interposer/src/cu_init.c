// SPDX-License-Identifier: Apache-2.0

// cuInit is the one door: without pages that are whole there is no driver, and
// no other function works before cuInit has.

#include "audit.h"
#include "mps.h"
#include "registration.h"
#include "slot.h"

static CUresult vg_refuse_init(const struct vg_error *error)
{
	vg_say(VG_SAY_PAGES, "CUDA is refused to this process: %s", error->text);
	return CUDA_ERROR_NOT_PERMITTED;
}

static CUresult vg_uuid_of(CUuuid *uuid, CUdevice device)
{
	// The second version gives a MIG device its own, the first its GPU's.
	if (vg_real_lookup(VG_SYM_cuDeviceGetUuid_v2))
		return VG_CALL(cuDeviceGetUuid_v2, uuid, device);
	return VG_CALL(cuDeviceGetUuid, uuid, device);
}

// vg_match_devices finds the driver's devices on the pages. One that cannot be
// identified is treated as one that is not there.
static CUresult vg_match_devices(struct vg_state *state)
{
	int count = 0;
	CUresult result = VG_CALL(cuDeviceGetCount, &count);

	for (int i = 0; !result && i < count; i++) {
		CUdevice device;
		CUuuid uuid;

		result = VG_CALL(cuDeviceGet, &device, i);
		if (result || device < 0 || device >= vg_max_ordinals || vg_uuid_of(&uuid, device))
			continue;
		state->devices[device] = (uint32_t)(vg_pages_find(&state->pages, uuid.bytes) + 1);
	}
	return result;
}

// vg_loads_lazily: a driver without the question loads code with its module.
static bool vg_loads_lazily(void)
{
	int mode = CU_MODULE_LAZY_LOADING;
	CUresult result = VG_CALL(cuModuleGetLoadingMode, &mode);

	return result != VG_NO_FUNCTION && (result || mode != CU_MODULE_EAGER_LOADING);
}

static CUresult vg_start(struct vg_state *state, unsigned flags)
{
	const char *dir = vg_pages_dir();
	struct vg_error error = {""};
	CUresult result;

	if (!dir) {
		vg_error_set(&error, "there is no limits page at /run/nri-vgpu/limits; was the container "
				     "created while nri-vgpu was not running? Re-create it");
		return vg_refuse_init(&error);
	}
	if (!state->pages.limits && vg_pages_open(&state->pages, dir, &error))
		return vg_refuse_init(&error);
	vg_mps_prepare(&state->pages);
	result = VG_CALL(cuInit, flags);
	if (!result)
		result = vg_match_devices(state);
	if (result)
		return result;
	if (!vg_mps_check(state, &error)) {
		(void)vg_refuse_init(&error);
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	}
	if (vg_slot_take(&state->pages, &error))
		return vg_refuse_init(&error);
	vg_agent_path(dir, state->agent);
	vg_register(state->agent, (uint32_t)state->pages.slot);
	vg_audit_start(state);
	vg_check_identity();
	atomic_store(&state->lazy, vg_loads_lazily());
	atomic_store_explicit(&state->ready, 1, memory_order_release);
	return CUDA_SUCCESS;
}

VG_API(cuInit, unsigned flags)
{
	struct vg_state *state = vg_state_new();
	struct vg_error error = {""};
	CUresult result;

	if (!state) {
		vg_error_set(&error, "no memory, or a kernel older than 4.14");
		return vg_refuse_init(&error);
	}
	vg_lock(&state->init);
	if (atomic_load(&state->ready))
		result = VG_CALL(cuInit, flags);
	else
		result = vg_start(state, flags);
	vg_unlock(&state->init);
	return result;
}
