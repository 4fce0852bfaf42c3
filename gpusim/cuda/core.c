// SPDX-License-Identifier: Apache-2.0
/* This file contains the process-wide variables of the simulated driver. */
#include "sim.h"

struct sim sim = {
	.queue = PTHREAD_MUTEX_INITIALIZER,
	.mutex = PTHREAD_MUTEX_INITIALIZER,
	.next_id = 1,
};

__thread bool sim_in_host_call;

void sim_lock(void)
{
	pthread_mutex_lock(&sim.mutex);
}

void sim_unlock(void)
{
	pthread_mutex_unlock(&sim.mutex);
}

CUresult sim_ready(void)
{
	const uint32_t *live = __atomic_load_n(&sim.live, __ATOMIC_ACQUIRE);

	if (sim_in_host_call)
		return CUDA_ERROR_NOT_PERMITTED;
	if (__atomic_load_n(&sim.ended, __ATOMIC_ACQUIRE))
		return CUDA_ERROR_DEINITIALIZED;
	return live && *live ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sim_device(CUdevice ordinal, struct sim_device **device)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (ordinal < 0 || ordinal >= sim.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*device = &sim.devices[ordinal];
	return CUDA_SUCCESS;
}

CUresult sim_charge(struct sim_device *device, uint64_t bytes)
{
	bool granted, lost;

	gs_lock(&sim.handle);
	lost = sim_lost(device);
	granted = !lost && gs_charge(&sim.handle, device->gpu, bytes);
	gs_unlock(&sim.handle);
	if (lost)
		return CUDA_ERROR_UNKNOWN;
	return granted ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sim_uncharge(struct sim_device *device, uint64_t bytes)
{
	gs_lock(&sim.handle);
	gs_uncharge(&sim.handle, device->gpu, bytes);
	gs_unlock(&sim.handle);
}
