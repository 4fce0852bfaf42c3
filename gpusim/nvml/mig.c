// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements Multi-Instance GPU (MIG). NVML's documentation names the functions that
 * accept a MIG device. All other functions return NVML_ERROR_NOT_SUPPORTED here.
 */
#include "nvml.h"

static bool is_capable(const struct gs_gpu *gpu)
{
	return gpu->cc_major >= 8;
}

bool nv_covers(nvmlDevice_t device, uint32_t gpu)
{
	const struct gs_mig *mig = &nv_state()->state->gpus[gpu].mig;

	return gpu == device->gpu || (mig->role == GS_MIG_DEVICE && mig->parent == device->gpu);
}

NVML_FUNCTION(nvmlDeviceGetMigMode, nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!is_capable(nv_gpu(device)))
		return NVML_ERROR_NOT_SUPPORTED;
	*current = *pending = nv_gpu(device)->mig.role == GS_MIG_ON ? NVML_FEATURE_ENABLED :
								      NVML_FEATURE_DISABLED;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice_t device, unsigned *count)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nv_gpu(device)->mig.role == GS_MIG_ON ? GS_MIG_MAX : 0;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceIsMigDeviceHandle, nvmlDevice_t device, unsigned *is_mig)
{
	nvmlReturn_t result = nv_enter_device(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!is_mig)
		return NVML_ERROR_INVALID_ARGUMENT;
	*is_mig = nv_is_mig(device);
	return NVML_SUCCESS;
}

/* A container sees the MIG devices whose capabilities it can open. An index without a device is not
 * the end of the list. */
NVML_FUNCTION(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t device, unsigned index,
	      nvmlDevice_t *mig)
{
	nvmlReturn_t result = nv_enter_gpu(device);
	const struct gs_state *state = nv_state()->state;

	if (result != NVML_SUCCESS)
		return result;
	if (!mig || index >= GS_MIG_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		const struct gs_mig *role = &state->gpus[g].mig;

		if (role->role != GS_MIG_DEVICE || role->parent != device->gpu)
			continue;
		*mig = nv_handle(g);
		if (*mig && (*mig)->index == index)
			return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

NVML_FUNCTION(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t mig, nvmlDevice_t *device)
{
	nvmlReturn_t result = nv_enter_device(mig);

	if (result != NVML_SUCCESS)
		return result;
	if (!device || !nv_is_mig(mig))
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = nv_handle(nv_gpu(mig)->mig.parent);
	return *device ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

NVML_FUNCTION(nvmlDeviceGetGpuInstanceId, nvmlDevice_t device, unsigned *id)
{
	nvmlReturn_t result = nv_enter_device(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!id)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!nv_is_mig(device))
		return NVML_ERROR_NOT_SUPPORTED;
	*id = nv_gpu(device)->mig.gpu_instance;
	return NVML_SUCCESS;
}

/* Each GPU instance has one compute instance, number 0. */
NVML_FUNCTION(nvmlDeviceGetComputeInstanceId, nvmlDevice_t device, unsigned *id)
{
	nvmlReturn_t result = nvmlDeviceGetGpuInstanceId(device, id);

	if (result == NVML_SUCCESS)
		*id = 0;
	return result;
}

NVML_FUNCTION(nvmlDeviceGetAttributes_v2, nvmlDevice_t device, struct nvml_attributes *out)
{
	nvmlReturn_t result = nv_enter_device(device);
	const struct gs_gpu *gpu;

	if (result != NVML_SUCCESS)
		return result;
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	gpu = nv_gpu(device);
	*out = (struct nvml_attributes){
		.sm_count = gpu->sm_count,
		.copy_engines = nv_is_mig(device) ? 1 : 3,
		.decoders = nv_is_mig(device) ? 1 : 7,
		.jpeg_engines = nv_is_mig(device) ? 1 : 7,
		.ofa_engines = nv_is_mig(device) ? 0 : 1,
		.gpu_slices = gpu->mig.slices,
		.compute_slices = gpu->mig.slices,
		.memory_mib = gpu->memory_bytes >> 20,
	};
	return NVML_SUCCESS;
}
