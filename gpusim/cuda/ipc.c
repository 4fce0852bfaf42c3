// SPDX-License-Identifier: Apache-2.0
/* This file implements imports of other processes' memory: IPC handles and external memory. */
#include "share.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXTERNAL_MAGIC 0x4558544dU
#define EXTERNAL_OPAQUE_FD 1

/* map_import takes an address range for memory that is charged to another process. */
static CUresult map_import(struct sim_device *device, struct sim_context *context, uint64_t size,
			   const struct sim_share *share, CUdeviceptr *address)
{
	struct sim_alloc *alloc;
	CUresult err = share ? sim_share_take(share) : CUDA_SUCCESS;

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_new(ALLOC_IMPORT, size, 0);
	if (alloc) {
		alloc->device = device;
		alloc->context = context;
		alloc->shared = share ? share->id : 0;
		*address = alloc->address;
	}
	sim_unlock();
	if (!alloc && share)
		sim_share_drop(share->id);
	return alloc ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
	struct sim_share share;
	struct sim_alloc *alloc;
	CUresult err = out ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_find(address);
	if (!alloc || alloc->kind != ALLOC_LINEAR)
		err = CUDA_ERROR_INVALID_VALUE;
	else {
		share = sim_share_make(alloc->device, alloc->address, alloc->size);
		if (!alloc->shared)
			alloc->shared = sim_share_file(alloc->device, alloc->charged);
		share.id = alloc->shared;
	}
	sim_unlock();
	if (err)
		return err;
	memset(out, 0, sizeof(*out));
	memcpy(out, &share, sizeof(share));
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	struct sim_context *context;
	struct sim_device *device;
	struct sim_share share;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!address || flags & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&share, &handle, sizeof(share));
	if (share.exec_id == sim.handle.exec_id && share.slot == sim.handle.id)
		return CUDA_ERROR_INVALID_CONTEXT;
	err = sim_share_open(&share, &device);
	return err ? err : map_import(device, context, share.size, &share, address);
}

CU_API CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	return open_handle(address, handle, flags);
}

CU_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	return open_handle(address, handle, flags);
}

static CUresult unmap_import(CUdeviceptr address)
{
	struct sim_alloc *alloc;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_exact(address);
	if (alloc && alloc->kind == ALLOC_IMPORT)
		sim_alloc_free(alloc);
	else
		err = CUDA_ERROR_INVALID_VALUE;
	sim_unlock();
	return err;
}

CU_API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	return unmap_import(address);
}

/* ---- external memory of another API, which is not charged here ---- */

struct sim_external {
	uint32_t magic;
	struct sim_context *context;
	uint64_t size;
	uint64_t shared; /* see share.h, 0: of another API */
};

/* take_external holds the memory behind the descriptor if a simulated process exported it. */
static uint64_t take_external(int fd)
{
	struct sim_share share;

	if (sim_share_from_fd(fd, SHARE_MAGIC, &share) || sim_share_take(&share))
		return 0;
	return share.id;
}

CU_API CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d)
{
	struct sim_context *context;
	struct sim_external *external;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!out || !d || d->size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (d->type != EXTERNAL_OPAQUE_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	external = calloc(1, sizeof(*external));
	if (!external)
		return CUDA_ERROR_OUT_OF_MEMORY;
	external->magic = EXTERNAL_MAGIC;
	external->context = context;
	external->size = d->size;
	external->shared = take_external(d->handle.fd);
	close(d->handle.fd); /* an import takes ownership of the descriptor */
	*out = external;
	return CUDA_SUCCESS;
}

static CUresult external_of(CUexternalMemory handle)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	return handle && handle->magic == EXTERNAL_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CU_API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory handle,
						const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *d)
{
	CUresult err = external_of(handle);

	if (err)
		return err;
	if (!address || !d || d->size == 0 || d->offset > handle->size ||
	    d->size > handle->size - d->offset)
		return CUDA_ERROR_INVALID_VALUE;
	return map_import(handle->context->device, handle->context, d->size, NULL, address);
}

CU_API CUresult cuDestroyExternalMemory(CUexternalMemory handle)
{
	CUresult err = external_of(handle);

	if (err)
		return err;
	handle->magic = 0;
	sim_share_drop(handle->shared);
	free(handle);
	return CUDA_SUCCESS;
}
