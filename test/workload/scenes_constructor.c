// SPDX-License-Identifier: Apache-2.0

// The constructor of this library uses CUDA, as the constructors of some frameworks do.

#include "driver.h"

static CUresult wl_result = (CUresult)CUDA_ERROR_NOT_FOUND;

__attribute__((constructor)) static void wl_construct(void)
{
	static struct wl_driver driver;
	CUcontext context;
	CUdeviceptr address;
	char why[256];

	if (wl_driver_open(&driver, "libcuda.so.1", WL_LOOKUP_GETPROC, why, sizeof why))
		return;
	wl_result = WL_CALL(&driver, init, 0);
	if (!wl_result)
		wl_result = WL_CALL(&driver, primary_retain, &context, 0);
	if (!wl_result)
		wl_result = WL_CALL(&driver, ctx_set_current, context);
	if (!wl_result)
		wl_result = WL_CALL(&driver, mem_alloc, &address, 1 << 20);
	if (!wl_result)
		wl_result = WL_CALL(&driver, mem_free, address);
}

__attribute__((visibility("default"))) int wl_constructed(void);

int wl_constructed(void)
{
	return (int)wl_result;
}
