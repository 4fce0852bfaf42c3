// SPDX-License-Identifier: Apache-2.0

#include "handle.h"

uint64_t vg_handle_context(void)
{
	CUcontext context = NULL;

	return VG_CALL(cuCtxGetCurrent, &context) == CUDA_SUCCESS ? vg_handle_key(context) : 0;
}

bool vg_handle_location(const CUmemLocation *location, CUdevice *device)
{
	*device = location->id;
	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return true;
	if (VG_CALL(cuCtxGetDevice, device))
		*device = 0;
	return location->type < CU_MEM_LOCATION_TYPE_HOST ||
	       location->type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}
