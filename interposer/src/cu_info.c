// SPDX-License-Identifier: Apache-2.0

// What a program is told about its memory: the limit as the total, and as free
// what is left of the limit, but never more than the GPU has.

#include "pool.h"
#include "reserve.h"

static uint64_t vg_left(struct vg_state *state, uint32_t device)
{
	uint64_t limit = vg_memory_limit(&state->pages, device);
	uint64_t used = vg_memory_used(&state->pages, device);

	return limit > used ? limit - used : 0;
}

// vg_describe turns the driver's figures for a device into the container's.
static void vg_describe(struct vg_state *state, CUdevice device, uint64_t *available, uint64_t *total)
{
	int index = vg_device_index(state, device);

	if (index < 0) {
		*available = 0;
		*total = 0;
		return;
	}
	*available = vg_min(*available, vg_left(state, (uint32_t)index));
	*total = vg_min(*total, vg_memory_limit(&state->pages, (uint32_t)index));
}

static CUresult vg_memory_info(uint64_t *available, uint64_t *total)
{
	struct vg_state *state = vg_ready_state();
	size_t real_available = 0;
	size_t real_total = 0;
	CUdevice device;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuMemGetInfo_v2, &real_available, &real_total);
	if (!result)
		result = VG_CALL(cuCtxGetDevice, &device);
	if (result)
		return result;
	vg_pools_refresh_stale(state);
	*available = real_available;
	*total = real_total;
	vg_describe(state, device, available, total);
	return CUDA_SUCCESS;
}

VG_API(cuMemGetInfo_v2, size_t *available, size_t *total)
{
	uint64_t limited_available;
	uint64_t limited_total;
	CUresult result = vg_memory_info(&limited_available, &limited_total);

	if (!result && available)
		*available = limited_available;
	if (!result && total)
		*total = limited_total;
	return result;
}

static unsigned vg_narrow(uint64_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

VG_API(cuMemGetInfo, unsigned *available, unsigned *total)
{
	uint64_t limited_available;
	uint64_t limited_total;
	CUresult result = vg_memory_info(&limited_available, &limited_total);

	if (!result && available)
		*available = vg_narrow(limited_available);
	if (!result && total)
		*total = vg_narrow(limited_total);
	return result;
}

VG_API(cuDeviceTotalMem_v2, size_t *bytes, CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	CUresult result = VG_CALL(cuDeviceTotalMem_v2, bytes, device);
	uint64_t available = 0;
	uint64_t total;

	if (result)
		return result;
	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	total = *bytes;
	vg_describe(state, device, &available, &total);
	*bytes = total;
	return CUDA_SUCCESS;
}

VG_API(cuDeviceTotalMem, unsigned *bytes, CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	CUresult result = VG_CALL(cuDeviceTotalMem, bytes, device);
	uint64_t available = 0;
	size_t whole = 0;
	uint64_t total;

	if (result)
		return result;
	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuDeviceTotalMem_v2, &whole, device);
	total = whole;
	vg_describe(state, device, &available, &total);
	*bytes = vg_narrow(total);
	return result;
}
