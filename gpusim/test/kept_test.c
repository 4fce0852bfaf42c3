// SPDX-License-Identifier: Apache-2.0
/* This test covers memory that sparse arrays and descriptors of dma-bufs hold. */
#include "harness.h"

#include <unistd.h>

#define CREATE CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long

static uint64_t held(void)
{
	return physical(getpid(), 0);
}

static CUmemGenericAllocationHandle memory(void)
{
	DRIVER(cuMemCreate, CREATE);
	const CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;

	OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
	return handle;
}

static void release(CUmemGenericAllocationHandle handle)
{
	DRIVER(cuMemRelease, CUmemGenericAllocationHandle);

	OK(cuMemRelease(handle));
}

static CUarray array_with(unsigned flags)
{
	DRIVER(cuArray3DCreate_v2, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
	const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024, .Height = 1024, .Format = 1, .NumChannels = 1,
					       .Flags = flags};
	CUarray array;

	OK(cuArray3DCreate_v2(&array, &shape));
	return array;
}

static void an_array_holds_its_memory(void)
{
	DRIVER(cuMemMapArrayAsync, CUarrayMapInfo *, unsigned, CUstream);
	DRIVER(cuArrayDestroy, CUarray);
	uint64_t before = held();
	CUarrayMapInfo places[2] = {{.memOperationType = CU_MEM_OPERATION_TYPE_MAP}, {.memOperationType = CU_MEM_OPERATION_TYPE_MAP}};

	places[0].resource.array = places[1].resource.array = array_with(CUDA_ARRAY3D_SPARSE);
	places[1].subresource.sparseLevel.offsetX = 512;
	for (int i = 0; i < 2; i++)
		places[i].memHandle.memHandle = memory();
	OK(cuMemMapArrayAsync(places, 2, NULL));
	for (int i = 0; i < 2; i++)
		release(places[i].memHandle.memHandle);
	CHECK(cuMemMapArrayAsync(places, 1, NULL) == CUDA_ERROR_INVALID_VALUE); /* released */
	CHECK(held() == before + 128 * MIB);
	places[0].memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
	OK(cuMemMapArrayAsync(places, 1, NULL));
	CHECK(held() == before + 64 * MIB);
	OK(cuArrayDestroy(places[0].resource.array));
	CHECK(held() == before);
	places[0].memOperationType = CU_MEM_OPERATION_TYPE_MAP;
	places[0].resource.array = array_with(0);
	CHECK(cuMemMapArrayAsync(places, 1, NULL) == CUDA_ERROR_INVALID_VALUE);
	OK(cuArrayDestroy(places[0].resource.array));
}

/* The simulator finds closed descriptors when the program creates or releases memory. */
static void look(void)
{
	release(memory());
}

static void a_descriptor_holds_linear_memory(void)
{
	DRIVER(cuMemGetHandleForAddressRange, void *, CUdeviceptr, size_t, int, unsigned long long);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	uint64_t before = held();
	CUdeviceptr address;
	int fd, copy;

	OK(cuMemAlloc_v2(&address, 64 * MIB));
	CHECK(cuMemGetHandleForAddressRange(&fd, address, 65 * MIB, 1, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemGetHandleForAddressRange(&fd, address, 64 * MIB, 2, 0) == CUDA_ERROR_NOT_SUPPORTED);
	OK(cuMemGetHandleForAddressRange(&fd, address + 32 * MIB, 32 * MIB, 1, 0));
	copy = dup(fd);
	close(fd);
	CHECK(held() == before + 64 * MIB);
	OK(cuMemFree_v2(address));
	look();
	CHECK(held() == before + 64 * MIB);
	close(copy);
	look();
	CHECK(held() == before);
	OK(cuMemAlloc_v2(&address, 64 * MIB));
	OK(cuMemGetHandleForAddressRange(&fd, address, 64 * MIB, 1, 0));
	close(fd);
	look();
	CHECK(held() == before + 64 * MIB);
	OK(cuMemFree_v2(address));
	CHECK(held() == before);
}

int main(void)
{
	begin();
	an_array_holds_its_memory();
	a_descriptor_holds_linear_memory();
	return 0;
}
