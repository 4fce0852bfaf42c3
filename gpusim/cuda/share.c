// SPDX-License-Identifier: Apache-2.0
#include "share.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct sim_share sim_share_make(const struct sim_device *device, uint64_t address, uint64_t size)
{
	return (struct sim_share){
		.magic = SHARE_MAGIC,
		.gpu = device->gpu,
		.exec_id = sim.handle.exec_id,
		.slot = sim.handle.id,
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
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

static bool is_there(const struct sim_share *share)
{
	bool there;

	if (!share->id)
		return exporter_lives(share);
	gs_lock(&sim.handle);
	gs_reap(&sim.handle);
	there = gs_shared_there(&sim.handle, share->id);
	gs_unlock(&sim.handle);
	return there;
}

uint64_t sim_share_file(const struct sim_device *device, uint64_t charged)
{
	uint64_t id;

	if (!sim.handle.state->driver.imports_keep || !charged)
		return 0;
	gs_lock(&sim.handle);
	id = gs_shared_add(&sim.handle, device->gpu, charged);
	gs_unlock(&sim.handle);
	return id;
}

CUresult sim_share_take(const struct sim_share *share)
{
	bool taken;

	if (!share->id)
		return CUDA_SUCCESS;
	gs_lock(&sim.handle);
	taken = gs_shared_import(&sim.handle, share->id);
	gs_unlock(&sim.handle);
	return taken ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void sim_share_drop(uint64_t id)
{
	if (!id)
		return;
	gs_lock(&sim.handle);
	gs_shared_close(&sim.handle, id);
	gs_unlock(&sim.handle);
}

void sim_share_release(uint64_t id)
{
	gs_lock(&sim.handle);
	gs_shared_release(&sim.handle, id);
	gs_unlock(&sim.handle);
}

/*
 * sim_share_watch opens a watch: a second open file description of the same file. The exported
 * descriptor has a lock. The kernel drops the lock when the last copy of the descriptor is closed
 * in any process.
 */
int sim_share_watch(int fd)
{
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
	char path[32];

	if (fcntl(fd, F_OFD_SETLK, &lock) != 0)
		return -1;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

bool sim_share_is_open(int watch)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};

	return fcntl(watch, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

CUresult sim_share_open(const struct sim_share *share, struct sim_device **device)
{
	if (share->magic != SHARE_MAGIC || !is_there(share))
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

CUresult sim_share_from_fd(int fd, uint32_t magic, struct sim_share *share)
{
	if (pread(fd, share, sizeof(*share), 0) != sizeof(*share) || share->magic != magic)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}
