// SPDX-License-Identifier: Apache-2.0
#include "share.h"

#include <sys/mman.h>
#include <unistd.h>

struct sim_share sim_share_make(const struct sim_device *device, uint64_t address, uint64_t size)
{
	return (struct sim_share){
		.magic = SHARE_MAGIC,
		.gpu = device->gpu,
		.exec_id = sim.handle.exec_id,
		.slot = sim.handle.id,
		.location_type = CU_MEM_LOCATION_DEVICE,
		.address = address,
		.size = size,
	};
}

static bool exporter_lives(const struct sim_share *share)
{
	const struct gs_identity *identity;

	if (share->slot >= GS_MAX_PROCS)
		return false;
	identity = &sim.handle.state->identities[share->slot];
	return __atomic_load_n(&identity->exec_id, __ATOMIC_RELAXED) == share->exec_id &&
	       gs_proc_alive(&sim.handle, share->slot, NULL);
}

CUresult sim_share_open(const struct sim_share *share, struct sim_device **device)
{
	if (share->magic != SHARE_MAGIC || !exporter_lives(share))
		return CUDA_ERROR_INVALID_HANDLE;
	for (int i = 0; i < sim.device_count; i++) {
		if (sim.devices[i].gpu != share->gpu)
			continue;
		*device = &sim.devices[i];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult sim_share_to_fd(const struct sim_share *share, int *fd)
{
	*fd = memfd_create("gpusim-memory", MFD_CLOEXEC);
	if (*fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (pwrite(*fd, share, sizeof(*share), 0) == sizeof(*share))
		return CUDA_SUCCESS;
	close(*fd);
	return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult sim_share_from_fd(int fd, struct sim_share *share)
{
	if (pread(fd, share, sizeof(*share), 0) != sizeof(*share) || share->magic != SHARE_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
