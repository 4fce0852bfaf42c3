// SPDX-License-Identifier: Apache-2.0
/* This test covers multicast objects: allowed members, and the lifetime of bound memory. */
#include "harness.h"

#include <unistd.h>

#define CREATE CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long

struct multicast_prop {
	unsigned devices;
	size_t size;
	unsigned long long handle_types, flags;
};

static uint64_t held(uint32_t gpu)
{
	return physical(getpid(), gpu);
}

static CUmemGenericAllocationHandle memory_on(int gpu)
{
	DRIVER(cuMemCreate, CREATE);
	const CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu}};
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
	return handle;
}

static CUmemGenericAllocationHandle group_of(unsigned devices)
{
	DRIVER(cuMulticastCreate, CUmemGenericAllocationHandle *, const struct multicast_prop *);
	DRIVER(cuMulticastAddDevice, CUmemGenericAllocationHandle, CUdevice);
	const struct multicast_prop prop = {.devices = devices, .size = 64 * MIB};
	CUmemGenericAllocationHandle group;

	OK(cuMulticastCreate(&group, &prop));
	for (unsigned i = 0; i < devices; i++)
		OK(cuMulticastAddDevice(group, (CUdevice)i));
	CHECK(cuMulticastAddDevice(group, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMulticastAddDevice(group, 7) == CUDA_ERROR_INVALID_DEVICE);
	return group;
}

static void what_is_announced_is_checked(void)
{
	DRIVER(cuMulticastCreate, CUmemGenericAllocationHandle *, const struct multicast_prop *);
	DRIVER(cuMulticastGetGranularity, size_t *, const struct multicast_prop *, int);
	DRIVER(cuMulticastAddDevice, CUmemGenericAllocationHandle, CUdevice);
	DRIVER(cuDeviceGetAttribute, int *, int, CUdevice);
	struct multicast_prop prop = {.devices = 3, .size = 64 * MIB};
	CUmemGenericAllocationHandle group, memory = memory_on(0);
	size_t granularity;
	int supported;

	OK(cuDeviceGetAttribute(&supported, 132, 0));
	CHECK(supported == 1);
	CHECK(cuMulticastCreate(&group, &prop) == CUDA_ERROR_INVALID_VALUE);
	prop.devices = 2;
	OK(cuMulticastGetGranularity(&granularity, &prop, 0));
	CHECK(granularity == 2 * MIB);
	prop.size = MIB;
	CHECK(cuMulticastCreate(&group, &prop) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMulticastAddDevice(memory, 0) == CUDA_ERROR_INVALID_VALUE);
	OK(((CUresult(*)(CUmemGenericAllocationHandle))driver("cuMemRelease"))(memory));
}

static void what_is_bound_stays(void)
{
	DRIVER(cuMemRelease, CUmemGenericAllocationHandle);
	DRIVER(cuMulticastBindMem, CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t,
	       size_t, unsigned long long);
	DRIVER(cuMulticastUnbind, CUmemGenericAllocationHandle, CUdevice, size_t, size_t);
	CUmemGenericAllocationHandle group = group_of(2), first = memory_on(0), second = memory_on(1);
	uint64_t with[] = {held(0), held(1)};

	CHECK(cuMulticastBindMem(group, MIB, first, 0, 2 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMulticastBindMem(group, 2 * MIB, first, 0, 64 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMulticastBindMem(group, 0, group, 0, 64 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMulticastBindMem(first, 0, first, 0, 64 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
	OK(cuMulticastBindMem(group, 0, first, 0, 64 * MIB, 0));
	CHECK(cuMulticastBindMem(group, 0, first, 0, 64 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
	OK(cuMulticastBindMem(group, 0, second, 0, 32 * MIB, 0));
	OK(cuMulticastBindMem(group, 32 * MIB, second, 32 * MIB, 32 * MIB, 0));
	OK(cuMemRelease(first));
	OK(cuMemRelease(second));
	CHECK(held(0) == with[0] && held(1) == with[1]);
	CHECK(cuMulticastUnbind(group, 1, 0, 64 * MIB) == CUDA_ERROR_INVALID_VALUE);
	OK(cuMulticastUnbind(group, 1, 0, 32 * MIB));
	CHECK(held(1) == with[1]);
	OK(cuMulticastUnbind(group, 1, 32 * MIB, 32 * MIB));
	CHECK(held(0) == with[0] && held(1) == with[1] - 64 * MIB);
	OK(cuMemRelease(group));
	CHECK(held(0) == with[0] - 64 * MIB);
	CHECK(cuMemRelease(group) == CUDA_ERROR_INVALID_VALUE);
}

/* what_is_mapped_is_bound checks that memory bound by its address outlives its mapping, and that a
 * mapped object stays alive. */
static void what_is_mapped_is_bound(void)
{
	DRIVER(cuMemRelease, CUmemGenericAllocationHandle);
	DRIVER(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	DRIVER(cuMemAddressFree, CUdeviceptr, size_t);
	DRIVER(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
	DRIVER(cuMemUnmap, CUdeviceptr, size_t);
	DRIVER(cuMulticastBindAddr, CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t,
	       unsigned long long);
	CUmemGenericAllocationHandle group = group_of(1), memory = memory_on(0);
	uint64_t with = held(0);
	CUdeviceptr address;

	OK(cuMemAddressReserve(&address, 128 * MIB, 0, 0, 0));
	OK(cuMemMap(address, 64 * MIB, 0, memory, 0));
	CHECK(cuMulticastBindAddr(group, 0, address + 32 * MIB, 64 * MIB, 0) == CUDA_ERROR_INVALID_VALUE);
	OK(cuMulticastBindAddr(group, 0, address + 32 * MIB, 32 * MIB, 0));
	OK(cuMemMap(address + 64 * MIB, 64 * MIB, 0, group, 0));
	OK(cuMemRelease(memory));
	OK(cuMemRelease(group));
	OK(cuMemUnmap(address, 64 * MIB));
	CHECK(held(0) == with);
	OK(cuMemUnmap(address + 64 * MIB, 64 * MIB));
	CHECK(held(0) == with - 64 * MIB);
	OK(cuMemAddressFree(address, 128 * MIB));
}

int main(void)
{
	begin();
	what_is_announced_is_checked();
	what_is_bound_stays();
	what_is_mapped_is_bound();
	return 0;
}
