// SPDX-License-Identifier: Apache-2.0

// cuInit opens the limits page before it starts the driver, and takes a slot on the usage page
// afterwards. cuInit fails if a page is not whole. No other function works before cuInit has
// succeeded.

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "cu_proc.h"
#include "memory/audit.h"
#include "mps.h"
#include "pages/limits.h"
#include "pages/registration.h"
#include "pages/slot.h"

#include <string.h>

static CUresult vg_refuse_init(const struct vg_error *error)
{
	vg_log(VG_LOG_PAGES, "refused CUDA to this process: %s", error->text);
	return CUDA_ERROR_NOT_PERMITTED;
}

static CUresult vg_uuid_of(CUuuid *uuid, CUdevice device)
{
	// For a MIG device, the second version returns the MIG device's own UUID, and the first
	// version returns the GPU's UUID.
	if (vg_real_lookup(VG_SYM_cuDeviceGetUuid_v2))
		return VG_CALL(cuDeviceGetUuid_v2, uuid, device);
	return VG_CALL(cuDeviceGetUuid, uuid, device);
}

// vg_found is the driver's description of itself.
struct vg_found {
	uint32_t devices[vg_max_ordinals]; // in the form of vg_state.devices
	bool lazy;
};

// vg_match_devices finds the driver's devices on the pages. A device that cannot be identified
// counts as missing from the pages.
static CUresult vg_match_devices(const struct vg_pages *pages, struct vg_found *found)
{
	int count = 0;
	CUresult result = VG_CALL(cuDeviceGetCount, &count);

	for (int i = 0; !result && i < count; i++) {
		CUdevice device;
		CUuuid uuid;

		result = VG_CALL(cuDeviceGet, &device, i);
		if (result || device < 0 || device >= vg_max_ordinals || vg_uuid_of(&uuid, device))
			continue;
		found->devices[device] = (uint32_t)(vg_pages_find(pages, uuid.bytes) + 1);
	}
	return result;
}

// vg_loads_lazily reports whether the driver loads code at first use. A driver without
// cuModuleGetLoadingMode loads code with its module.
static bool vg_loads_lazily(void)
{
	int mode = CU_MODULE_LAZY_LOADING;
	CUresult result = VG_CALL(cuModuleGetLoadingMode, &mode);

	return result != VG_NO_FUNCTION && (result || mode != CU_MODULE_EAGER_LOADING);
}

// vg_prepare opens the limits page and sets the environment that the driver reads at its start.
static CUresult vg_prepare(struct vg_state *state, const char *dir)
{
	struct vg_error error = {""};
	int failed = 0;
	int kept;

	kept = vg_thread_keep();
	vg_mutex_lock(&state->init);
	if (!state->pages.limits)
		failed = vg_limits_open(&state->pages, dir, &error);
	if (!failed)
		vg_mps_prepare(&state->pages);
	vg_mutex_unlock(&state->init);
	vg_thread_let(kept);
	return failed ? vg_refuse_init(&error) : CUDA_SUCCESS;
}

// vg_start_driver starts the driver and queries its GPUs. vg_start_driver holds no mutex, because
// it opens the driver under a lock of the loader. In a library's constructor, the holder of that
// lock may be waiting for this thread.
static CUresult vg_start_driver(const struct vg_state *state, unsigned flags, struct vg_found *found)
{
	struct vg_error error = {""};
	CUresult result;

	// cuInit takes long, so that the code of cuGetProcAddress is then no longer in the processor's
	// caches.
	vg_cu_proc_check();
	result = VG_CALL(cuInit, flags);
	if (!result)
		result = vg_match_devices(&state->pages, found);
	if (result)
		return result;
	if (!vg_mps_check(&state->pages, found->devices, &error)) {
		(void)vg_refuse_init(&error);
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	}
	found->lazy = vg_loads_lazily();
	return CUDA_SUCCESS;
}

// vg_enter takes a slot for this process and registers the process with the agent, once.
static CUresult vg_enter(struct vg_state *state, const char *dir, const struct vg_found *found)
{
	struct vg_error error = {""};

	if (atomic_load(&state->ready))
		return CUDA_SUCCESS;
	memcpy(state->devices, found->devices, sizeof state->devices);
	if (vg_slot_take(&state->pages, &error))
		return vg_refuse_init(&error);
	vg_registration_path(dir, state->agent);
	vg_registration_send(state->agent, (uint32_t)state->pages.slot);
	vg_audit_start(state);
	atomic_store(&state->lazy, found->lazy);
	atomic_store_explicit(&state->ready, 1, memory_order_release);
	return CUDA_SUCCESS;
}

static CUresult vg_start(struct vg_state *state, unsigned flags)
{
	const char *dir = vg_pages_dir();
	struct vg_found found = {{0}, false};
	struct vg_error error = {""};
	CUresult result;
	int kept;

	if (!dir) {
		vg_error_set(&error, "there is no limits page at /run/nri-vgpu/limits; was the container "
				     "created while nri-vgpu was not running? Re-create it");
		return vg_refuse_init(&error);
	}
	result = vg_prepare(state, dir);
	if (!result)
		result = vg_start_driver(state, flags, &found);
	if (result)
		return result;
	kept = vg_thread_keep();
	vg_mutex_lock(&state->init);
	result = vg_enter(state, dir, &found);
	vg_mutex_unlock(&state->init);
	vg_thread_let(kept);
	return result;
}

VG_API(cuInit, unsigned flags)
{
	struct vg_state *state = vg_state_new();
	struct vg_error error = {""};

	if (!state) {
		vg_error_set(&error, "no memory, or a kernel older than 4.14");
		return vg_refuse_init(&error);
	}
	return atomic_load(&state->ready) ? VG_CALL(cuInit, flags) : vg_start(state, flags);
}
