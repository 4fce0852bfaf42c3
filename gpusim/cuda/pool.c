// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements memory pools. A pool reserves physical memory in steps and allocates parts
 * of that memory. The pool keeps freed memory until a synchronisation finds more than the pool's
 * release threshold. The pool reuses freed memory at once, because the order of the stream makes
 * the reuse safe. A pool that can be shared keeps all memory until the pool ends (poolshare.c).
 */
#include "pool.h"
#include "queue.h"

#include <stdlib.h>
#include <string.h>

#define POOL_MAGIC 0x504f4f4cU

static CUresult reserve(struct sim_pool *pool, uint64_t needed)
{
	uint64_t target = round_up(needed, POOL_STEP);
	CUresult err;

	if (target <= pool->reserved)
		return CUDA_SUCCESS;
	if (pool->max_size && needed > pool->max_size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	err = sim_charge(pool->device, target - pool->reserved);
	if (err == CUDA_ERROR_OUT_OF_MEMORY) {
		/* Unused memory of pools must not make the allocation fail. */
		sim_pools_trim(pool->device, true);
		if (target <= pool->reserved)
			return CUDA_SUCCESS;
		err = sim_charge(pool->device, target - pool->reserved);
	}
	if (err)
		return err;
	sim_pool_reserved(pool, target - pool->reserved);
	return CUDA_SUCCESS;
}

CUresult sim_pool_alloc(struct sim_pool *pool, uint64_t size, CUdeviceptr *address)
{
	uint64_t charged = round_up(size, POOL_PART);
	struct sim_block *block = NULL;
	struct sim_alloc *alloc;
	CUresult err;

	if (size > sim_gpu(pool->device)->memory_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (sim_pool_has_blocks(pool))
		block = sim_block_take(pool, size, &err);
	else
		err = reserve(pool, pool->used + charged);
	if (err)
		return err;
	alloc = sim_alloc_new(ALLOC_POOL, size, 0);
	if (!alloc) {
		if (block)
			block->in_use = false;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	alloc->pool = pool;
	alloc->block = block;
	alloc->device = pool->device;
	alloc->charged = charged;
	sim_pool_used(pool, charged);
	*address = alloc->address;
	return CUDA_SUCCESS;
}

static void free_pool(struct sim_pool *pool)
{
	sim_pool_unlist(pool);
	if (sim_pool_has_blocks(pool))
		sim_blocks_end(pool);
	else if (pool->reserved)
		sim_uncharge(pool->device, pool->reserved);
	pool->magic = 0;
	free(pool);
}

/* sim_pool_give_back frees a destroyed pool with its last allocation. */
void sim_pool_give_back(const struct sim_alloc *alloc)
{
	struct sim_pool *pool = alloc->pool;

	if (alloc->block)
		alloc->block->in_use = false;
	pool->used -= alloc->charged;
	if (pool->destroyed && pool->used == 0)
		free_pool(pool);
}

/* ---- pools ---- */

struct sim_pool *sim_pool_new(struct sim_device *device)
{
	struct sim_pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->magic = POOL_MAGIC;
	pool->device = device;
	pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
	pool->access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	pool->access.location.id = (int)(device - sim.devices);
	pool->access.flags = 3;
	sim_pool_list(pool);
	return pool;
}

static CUresult default_pool(struct sim_device *device, struct sim_pool **out)
{
	sim_lock();
	if (!device->default_pool) {
		device->default_pool = sim_pool_new(device);
		if (device->default_pool)
			device->default_pool->is_default = true;
	}
	*out = device->default_pool;
	sim_unlock();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_pool_of(CUmemoryPool handle, struct sim_pool **pool)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != POOL_MAGIC || handle->destroyed)
		return CUDA_ERROR_INVALID_VALUE;
	*pool = handle;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	struct sim_device *device;
	CUresult err = out && props ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (!err && props->allocType != 1)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err && (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		     (props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)))
		err = CUDA_ERROR_NOT_SUPPORTED;
	if (!err)
		err = sim_device(props->location.id, &device);
	if (err)
		return err;
	sim_lock();
	*out = sim_pool_new(device);
	if (*out) {
		(*out)->max_size = props->maxSize;
		(*out)->handle_types = props->handleTypes;
	}
	sim_unlock();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	struct sim_pool *pool;
	CUresult err = sim_pool_of(handle, &pool);

	if (!err && pool->is_default)
		err = CUDA_ERROR_INVALID_VALUE;
	if (err)
		return err;
	sim_lock();
	if (pool->device->current_pool == pool)
		pool->device->current_pool = NULL;
	sim_pool_trim_to(pool, 0);
	pool->destroyed = true;
	if (pool->used == 0)
		free_pool(pool);
	sim_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	return out ? default_pool(device, out) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_pool_current(struct sim_device *device, struct sim_pool **out)
{
	if (!device->current_pool)
		return default_pool(device, out);
	*out = device->current_pool;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	return out ? sim_pool_current(device, out) : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle)
{
	struct sim_device *device;
	struct sim_pool *pool;
	CUresult err = sim_device(ordinal, &device);

	if (!err)
		err = sim_pool_of(handle, &pool);
	if (err)
		return err;
	if (pool->imported)
		return CUDA_ERROR_INVALID_VALUE;
	if (pool->device != device)
		return CUDA_ERROR_INVALID_DEVICE;
	device->current_pool = pool;
	return CUDA_SUCCESS;
}

/* by_location returns the ordinal of a location, for pinned device memory. */
static CUresult by_location(const CUmemLocation *location, int type, CUdevice *ordinal)
{
	if (!location)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != 1)
		return CUDA_ERROR_NOT_SUPPORTED;
	*ordinal = location->id;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
	CUdevice ordinal;
	CUresult err = by_location(location, type, &ordinal);

	return err ? err : cuDeviceGetDefaultMemPool(out, ordinal);
}

CU_API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
	CUdevice ordinal;
	CUresult err = by_location(location, type, &ordinal);

	return err ? err : cuDeviceGetMemPool(out, ordinal);
}

CU_API CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool)
{
	CUdevice ordinal;
	CUresult err = by_location(location, type, &ordinal);

	return err ? err : cuDeviceSetMemPool(ordinal, pool);
}

CU_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	struct sim_pool *pool;
	CUresult err = sim_pool_of(handle, &pool);

	if (err)
		return err;
	sim_lock();
	sim_pool_trim_to(pool, keep);
	sim_unlock();
	return CUDA_SUCCESS;
}

/* ---- attributes ---- */

static uint64_t *wide_attribute(struct sim_pool *pool, int attribute)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &pool->threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return &pool->reserved;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &pool->reserved_high;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &pool->used;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &pool->used_high;
	default:
		return NULL;
	}
}

CU_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct sim_pool *pool;
	const uint64_t *wide;
	CUresult err = sim_pool_of(handle, &pool);

	if (err)
		return err;
	wide = wide_attribute(pool, attribute);
	if (!value || (!wide && (attribute < CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES || attribute > CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)))
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	if (wide)
		memcpy(value, wide, sizeof(*wide));
	else
		memcpy(value, &pool->reuse[attribute - 1], sizeof(int));
	sim_unlock();
	return CUDA_SUCCESS;
}

/* set_wide sets an attribute of 64 bits. A program can only reset a high-water mark to the current
 * value. */
static CUresult set_wide(struct sim_pool *pool, int attribute, uint64_t value)
{
	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		pool->threshold = value;
	else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && value == 0)
		pool->reserved_high = pool->reserved;
	else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH && value == 0)
		pool->used_high = pool->used;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
	struct sim_pool *pool;
	uint64_t wide;
	CUresult err = sim_pool_of(handle, &pool);

	if (err)
		return err;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
		memcpy(&pool->reuse[attribute - 1], value, sizeof(int));
		return CUDA_SUCCESS;
	}
	memcpy(&wide, value, sizeof(wide));
	sim_lock();
	err = set_wide(pool, attribute, wide);
	sim_unlock();
	return err;
}

CU_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *list, size_t count)
{
	struct sim_pool *pool;
	CUresult err = sim_pool_of(handle, &pool);

	return err ? err : count && !list ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool handle, CUmemLocation *location)
{
	struct sim_pool *pool;
	CUresult err = sim_pool_of(handle, &pool);

	if (err)
		return err;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = 3;
	return CUDA_SUCCESS;
}
