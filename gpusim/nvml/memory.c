// SPDX-License-Identifier: Apache-2.0
/* This file implements memory: the sum of all processes on a device. The memory of a GPU in MIG mode
 * is the sum of its MIG devices. */
#include "nvml.h"

/* read_memory reads total and used bytes of a device. */
static void read_memory(nvmlDevice_t device, nvml_u64 *total, nvml_u64 *used)
{
	nv_lock();
	*total = nv_gpu(device)->memory_bytes;
	*used = 0;
	for (uint32_t g = 0; g < nv_state()->state->gpu_count; g++)
		if (nv_covers(device, g))
			*used += nv_state()->state->gpus[g].used_bytes;
	nv_unlock();
}

NVML_FUNCTION(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, struct nvml_memory *memory)
{
	nvmlReturn_t result = nv_enter_device(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	read_memory(device, &memory->total, &memory->used);
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t device, struct nvml_memory_v2 *memory)
{
	nvmlReturn_t result = nv_enter_device(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != NVML_VERSION(struct nvml_memory_v2, 2))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	read_memory(device, &memory->total, &memory->used);
	memory->reserved = 0;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t device, struct nvml_bar1 *memory)
{
	nvmlReturn_t result = nv_enter_device(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	*memory = (struct nvml_bar1){.total = UINT64_C(256) << 30, .free = UINT64_C(256) << 30};
	return NVML_SUCCESS;
}
