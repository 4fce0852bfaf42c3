// SPDX-License-Identifier: Apache-2.0
/* The calls in this file succeed without effect. */
#include "sim.h"

CU_API CUresult cuProfilerStart(void)
{
	return sim_ready();
}

CU_API CUresult cuProfilerStop(void)
{
	return sim_ready();
}

/*
 * known checks an address of managed memory. Advice and prefetches have no effect, because managed
 * memory is already on the GPU.
 */
static CUresult known(CUdeviceptr address)
{
	bool found;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	found = sim_alloc_find(address) != NULL;
	sim_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemAdvise(CUdeviceptr address, size_t size, int advice, CUdevice device)
{
	(void)size, (void)advice, (void)device;
	return known(address);
}

CU_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, int advice, CUmemLocation location)
{
	(void)size, (void)advice, (void)location;
	return known(address);
}

CU_PTSZ(cuMemPrefetchAsync, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
	((void)size, (void)device, (void)stream, known(address)))
CU_PTSZ(cuMemPrefetchAsync_v2,
	(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags, CUstream stream),
	((void)size, (void)location, (void)flags, (void)stream, known(address)))
CU_PTSZ(cuStreamAttachMemAsync, (CUstream stream, CUdeviceptr address, size_t size, unsigned flags),
	((void)stream, (void)size, (void)flags, known(address)))
