// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements pools shared by processes. A file descriptor shares a pool, and 64 bytes of
 * data share each allocation of the pool. An importer holds a block from the first import of an
 * allocation in the block until the importer's pool ends.
 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POOL_SHARE_MAGIC UINT32_C(0x53494d50)
#define POINTER_MAGIC UINT32_C(0x53494d51)

/* pointer_data is a CUmemPoolPtrExportData. `offset` is the pool's handle as an address. */
struct pointer_data {
	struct sim_share share;
	uint64_t block;
};

_Static_assert(sizeof(struct pointer_data) <= sizeof(CUmemPoolPtrExportData), "exported pointers");

/* ---- pools ---- */

CU_API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle, int type,
						 unsigned long long flags)
{
	struct sim_share share;
	struct sim_pool *pool;
	CUresult err = sim_pool_of(handle, &pool);

	if (err)
		return err;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!(pool->handle_types & type))
		return CUDA_ERROR_INVALID_VALUE;
	share = sim_share_make(pool->device, (uint64_t)(uintptr_t)pool, 0);
	share.magic = POOL_SHARE_MAGIC;
	err = sim_share_to_fd(&share, out);
	if (!err)
		pool->exported = true;
	return err;
}

CU_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *os_handle, int type,
						   unsigned long long flags)
{
	struct sim_device *device;
	struct sim_share share;
	CUresult err = out && !flags ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (!err && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		err = CUDA_ERROR_NOT_SUPPORTED;
	if (!err)
		err = sim_share_from_fd((int)(intptr_t)os_handle, POOL_SHARE_MAGIC, &share);
	if (err)
		return err;
	share.magic = SHARE_MAGIC;
	err = sim_share_open(&share, &device);
	if (err)
		return err;
	sim_lock();
	*out = sim_pool_new(device);
	if (*out) {
		(*out)->imported = true;
		(*out)->origin = share;
	}
	sim_unlock();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- allocations ---- */

static CUresult describe(CUdeviceptr address, struct pointer_data *data)
{
	const struct sim_alloc *alloc = sim_alloc_exact(address);
	struct sim_block *block = alloc ? alloc->block : NULL;

	if (!block || !alloc->pool->exported)
		return CUDA_ERROR_INVALID_VALUE;
	if (!block->shared)
		block->shared = sim_share_file(alloc->device, block->size);
	data->share = sim_share_make(alloc->device, alloc->address, alloc->size);
	data->share.magic = POINTER_MAGIC;
	data->share.offset = (uint64_t)(uintptr_t)alloc->pool;
	data->share.id = block->shared;
	data->block = block->key;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
	struct pointer_data data;
	CUresult err = out ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	sim_lock();
	err = describe(address, &data);
	sim_unlock();
	if (err)
		return err;
	memset(out, 0, sizeof(*out));
	memcpy(out, &data, sizeof(data));
	return CUDA_SUCCESS;
}

static bool is_of(const struct sim_share *share, const struct sim_pool *pool)
{
	return pool->imported && share->exec_id == pool->origin.exec_id &&
	       share->slot == pool->origin.slot && share->offset == pool->origin.address;
}

/* hold_block returns the importer's record of a block. The first import takes a hold of the
 * block. */
static CUresult hold_block(struct sim_pool *pool, const struct pointer_data *data, struct sim_block **out)
{
	struct sim_block *block = pool->blocks;
	CUresult err;

	while (block && block->key != data->block)
		block = block->next;
	*out = block;
	if (block)
		return CUDA_SUCCESS;
	err = sim_share_take(&data->share);
	if (err)
		return err;
	*out = sim_block_add(pool, round_up(data->share.size, POOL_STEP), data->block);
	if (*out)
		(*out)->shared = data->share.id;
	else
		sim_share_drop(data->share.id);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult import(struct sim_pool *pool, const struct pointer_data *data, CUdeviceptr *address)
{
	struct sim_alloc *alloc;
	struct sim_block *block;
	CUresult err = hold_block(pool, data, &block);

	if (err)
		return err;
	alloc = sim_alloc_new(ALLOC_POOL, data->share.size, 0);
	if (!alloc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	alloc->pool = pool;
	alloc->block = block;
	alloc->device = pool->device;
	alloc->charged = round_up(data->share.size, POOL_PART);
	sim_pool_used(pool, alloc->charged);
	*address = alloc->address;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool handle, CUmemPoolPtrExportData *in)
{
	struct pointer_data data;
	struct sim_device *device;
	struct sim_pool *pool;
	CUresult err = sim_pool_of(handle, &pool);

	if (err)
		return err;
	if (!out || !in)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&data, in, sizeof(data));
	if (data.share.magic != POINTER_MAGIC || !is_of(&data.share, pool))
		return CUDA_ERROR_INVALID_VALUE;
	data.share.magic = SHARE_MAGIC;
	err = sim_share_open(&data.share, &device);
	if (err)
		return err;
	sim_lock();
	err = import(pool, &data, out);
	sim_unlock();
	return err;
}
