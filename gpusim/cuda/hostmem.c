// SPDX-License-Identifier: Apache-2.0
/* This file implements page-locked host memory: ordinary memory that is in the driver's table. */
#include "sim.h"

#include <stdlib.h>

#define PAGE 4096u

static CUresult allocate(void **out, size_t size, unsigned flags)
{
	struct sim_context *context;
	struct sim_alloc *alloc;
	void *memory;
	CUresult err = sim_current(&context);

	if (!err)
		err = sim_capture_guard();
	if (err)
		return err;
	if (!out || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (posix_memalign(&memory, PAGE, size) != 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	sim_lock();
	alloc = sim_alloc_at(ALLOC_HOST, (CUdeviceptr)(uintptr_t)memory, size);
	if (alloc) {
		alloc->device = context->device;
		alloc->flags = flags;
	}
	sim_unlock();
	if (!alloc) {
		free(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = memory;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
	return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : allocate(out, size, flags);
}

CU_API CUresult cuMemAllocHost_v2(void **out, size_t size)
{
	return allocate(out, size, 0);
}

CU_API CUresult cuMemAllocHost(void **out, unsigned size)
{
	return allocate(out, size, 0);
}

/* forget removes a range from the table. A registered range is not freed. */
static CUresult forget(void *pointer, bool registered)
{
	struct sim_alloc *alloc;
	CUresult err = sim_ready();
	bool known;

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_exact((CUdeviceptr)(uintptr_t)pointer);
	known = alloc && alloc->kind == ALLOC_HOST && alloc->registered == registered;
	if (known)
		sim_alloc_drop(alloc);
	sim_unlock();
	return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemFreeHost(void *pointer)
{
	CUresult err = forget(pointer, false);

	if (!err)
		free(pointer);
	return err;
}

static CUresult register_range(void *pointer, size_t size, unsigned flags)
{
	struct sim_alloc *alloc;
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!pointer || size == 0 || flags & ~15u)
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	if (sim_alloc_find((CUdeviceptr)(uintptr_t)pointer)) {
		err = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	} else {
		alloc = sim_alloc_at(ALLOC_HOST, (CUdeviceptr)(uintptr_t)pointer, size);
		if (alloc) {
			alloc->device = &sim.devices[0];
			alloc->registered = true;
		} else {
			err = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	sim_unlock();
	return err;
}

CU_API CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
	return register_range(pointer, size, flags);
}

CU_API CUresult cuMemHostRegister(void *pointer, size_t size, unsigned flags)
{
	return register_range(pointer, size, flags);
}

CU_API CUresult cuMemHostUnregister(void *pointer)
{
	CUresult err = forget(pointer, true);

	return err == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : err;
}

static CUresult known_host(const void *pointer, unsigned *flags)
{
	const struct sim_alloc *alloc;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_find((CUdeviceptr)(uintptr_t)pointer);
	if (alloc && alloc->kind == ALLOC_HOST)
		*flags = alloc->flags;
	else
		err = CUDA_ERROR_INVALID_VALUE;
	sim_unlock();
	return err;
}

CU_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags)
{
	unsigned unused;
	CUresult err = out && !flags ? known_host(pointer, &unused) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		*out = (CUdeviceptr)(uintptr_t)pointer;
	return err;
}

CU_API CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
	return flags ? known_host(pointer, flags) : CUDA_ERROR_INVALID_VALUE;
}
