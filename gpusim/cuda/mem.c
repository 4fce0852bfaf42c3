// SPDX-License-Identifier: Apache-2.0
/* This file implements linear and managed memory. */
#include "share.h"

static CUresult file(struct sim_context *context, enum alloc_kind kind, uint64_t size,
		     uint64_t charged, CUdeviceptr *address)
{
	struct sim_alloc *alloc;

	sim_lock();
	alloc = sim_alloc_new(kind, size, 0);
	if (alloc) {
		alloc->device = context->device;
		alloc->context = context;
		alloc->charged = charged;
		*address = alloc->address;
	}
	sim_unlock();
	return alloc ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_chunked(struct sim_context *context, enum alloc_kind kind, uint64_t size,
				 bool low, CUdeviceptr *address)
{
	struct sim_alloc *alloc;
	CUresult err;

	sim_lock();
	alloc = sim_chunk_alloc(context, kind, size, low, &err);
	if (alloc)
		*address = alloc->address;
	sim_unlock();
	return err;
}

static CUresult allocate(enum alloc_kind kind, uint64_t size, CUdeviceptr *address)
{
	struct sim_context *context;
	uint64_t charged;
	CUresult err = sim_current(&context);

	if (!err)
		err = sim_capture_guard();
	if (err)
		return err;
	if (!address || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > sim_gpu(context->device)->memory_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (sim_gpu(context->device)->chunk_bytes)
		return allocate_chunked(context, kind, size, false, address);
	charged = round_up(size, sim_gpu(context->device)->alloc_granularity);
	err = sim_charge(context->device, charged);
	if (err)
		return err;
	err = file(context, kind, size, charged, address);
	if (err)
		sim_uncharge(context->device, charged);
	return err;
}

CU_API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
	return allocate(ALLOC_LINEAR, size, address);
}

/* This cuMemAlloc is a call of the first API, whose addresses have 32 bits. */
CU_API CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned size)
{
	struct sim_context *context;
	struct sim_alloc *alloc;
	uint64_t charged;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!address || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_gpu(context->device)->chunk_bytes) {
		CUdeviceptr wide = 0;

		err = allocate_chunked(context, ALLOC_LINEAR, size, true, &wide);
		*address = (CUdeviceptr_v1)wide;
		return err;
	}
	charged = round_up(size, sim_gpu(context->device)->alloc_granularity);
	err = sim_charge(context->device, charged);
	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_new_low(size);
	if (alloc) {
		alloc->device = context->device;
		alloc->context = context;
		alloc->charged = charged;
		*address = (CUdeviceptr_v1)alloc->address;
	}
	sim_unlock();
	if (alloc)
		return CUDA_SUCCESS;
	sim_uncharge(context->device, charged);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult check_pitch(size_t width, size_t height, unsigned element)
{
	if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	return width > UINT64_MAX / 2 / height ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CU_API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
				   unsigned element)
{
	CUresult err = check_pitch(width, height, element);

	if (err)
		return err;
	if (!pitch)
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = round_up(width, 512);
	return allocate(ALLOC_LINEAR, *pitch * height, address);
}

CU_API CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width,
				unsigned height, unsigned element)
{
	CUresult err = check_pitch(width, height, element);
	uint64_t wide = round_up(width, 512);

	if (err)
		return err;
	if (!pitch)
		return CUDA_ERROR_INVALID_VALUE;
	if (wide * height > UINT32_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*pitch = (unsigned)wide;
	return cuMemAlloc(address, (unsigned)(wide * height));
}

/* cuMemAllocManaged charges managed memory at once, because managed memory counts as resident on
 * the GPU. */
CU_API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
	if (flags != 1 && flags != 2)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(ALLOC_MANAGED, size, address);
}

static CUresult free_address(CUdeviceptr address)
{
	struct sim_context *context;
	struct sim_alloc *alloc;
	CUresult err = sim_current(&context);

	if (!err)
		err = sim_capture_guard();
	if (err || !address)
		return err;
	sim_lock();
	alloc = sim_alloc_exact(address);
	if (!alloc || alloc->kind == ALLOC_HOST || alloc->kind == ALLOC_RESERVED ||
	    alloc->kind == ALLOC_ARRAY || (alloc->kind == ALLOC_IMPORT && !alloc->context))
		err = CUDA_ERROR_INVALID_VALUE;
	sim_unlock();
	if (err)
		return err;
	if (sim.handle.state->driver.free_waits)
		sim_wait_context(context);
	sim_lock();
	alloc = sim_alloc_exact(address);
	if (alloc)
		sim_alloc_free(alloc);
	sim_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemFree_v2(CUdeviceptr address)
{
	return free_address(address);
}

CU_API CUresult cuMemFree(CUdeviceptr_v1 address)
{
	return free_address(address);
}

/* ---- free and total memory ---- */

static CUresult memory_info(uint64_t *available, uint64_t *total)
{
	struct sim_context *context;
	struct gs_gpu *gpu;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	gpu = sim_gpu(context->device);
	sim_memories_look();
	gs_lock(&sim.handle);
	gs_reap(&sim.handle);
	*available = gpu->memory_bytes - gpu->used_bytes;
	*total = gpu->memory_bytes;
	gs_unlock(&sim.handle);
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	uint64_t a, t;
	CUresult err = memory_info(&a, &t);

	if (err)
		return err;
	if (available)
		*available = a;
	if (total)
		*total = t;
	return CUDA_SUCCESS;
}

static unsigned clamp32(uint64_t value)
{
	return value > UINT32_MAX ? UINT32_MAX : (unsigned)value;
}

CU_API CUresult cuMemGetInfo(unsigned *available, unsigned *total)
{
	uint64_t a, t;
	CUresult err = memory_info(&a, &t);

	if (err)
		return err;
	if (available)
		*available = clamp32(a);
	if (total)
		*total = clamp32(t);
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = sim_gpu(device)->memory_bytes;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice ordinal)
{
	size_t wide;
	CUresult err = bytes ? cuDeviceTotalMem_v2(&wide, ordinal) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		*bytes = clamp32(wide);
	return err;
}

static CUresult address_range(CUdeviceptr address, uint64_t *base, uint64_t *size)
{
	struct sim_alloc *alloc;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_find(address);
	if (alloc) {
		*base = alloc->address;
		*size = alloc->size;
	}
	sim_unlock();
	return alloc ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CU_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	uint64_t b, s;
	CUresult err = address_range(address, &b, &s);

	if (err)
		return err;
	if (base)
		*base = b;
	if (size)
		*size = s;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 address)
{
	uint64_t b, s;
	CUresult err = address_range(address, &b, &s);

	if (err)
		return err;
	if (base)
		*base = (CUdeviceptr_v1)b;
	if (size)
		*size = clamp32(s);
	return CUDA_SUCCESS;
}
