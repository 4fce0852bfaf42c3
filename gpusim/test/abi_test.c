// SPDX-License-Identifier: Apache-2.0
/* The declarations in cuda_abi.h against what a compiler made of CUDA 13.0's. */
#include "../cuda/cuda_abi.h"

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define VALUE(name, value) _Static_assert((name) == (value), #name)

SIZE(CUdeviceptr, 8);
SIZE(CUuuid, 16);
SIZE(CUDA_ARRAY_DESCRIPTOR, 24);
AT(CUDA_ARRAY_DESCRIPTOR, Width, 0);
AT(CUDA_ARRAY_DESCRIPTOR, Height, 8);
AT(CUDA_ARRAY_DESCRIPTOR, Format, 16);
AT(CUDA_ARRAY_DESCRIPTOR, NumChannels, 20);
SIZE(CUDA_ARRAY3D_DESCRIPTOR, 40);
AT(CUDA_ARRAY3D_DESCRIPTOR, Width, 0);
AT(CUDA_ARRAY3D_DESCRIPTOR, Height, 8);
AT(CUDA_ARRAY3D_DESCRIPTOR, Depth, 16);
AT(CUDA_ARRAY3D_DESCRIPTOR, Format, 24);
AT(CUDA_ARRAY3D_DESCRIPTOR, NumChannels, 28);
AT(CUDA_ARRAY3D_DESCRIPTOR, Flags, 32);
SIZE(CUDA_ARRAY_MEMORY_REQUIREMENTS, 32);
AT(CUDA_ARRAY_MEMORY_REQUIREMENTS, size, 0);
AT(CUDA_ARRAY_MEMORY_REQUIREMENTS, alignment, 8);
SIZE(CUmemLocation, 8);
AT(CUmemLocation, type, 0);
AT(CUmemLocation, id, 4);
SIZE(CUmemAllocationProp, 32);
AT(CUmemAllocationProp, type, 0);
AT(CUmemAllocationProp, requestedHandleTypes, 4);
AT(CUmemAllocationProp, location, 8);
AT(CUmemAllocationProp, allocFlags, 24);
SIZE(CUmemPoolProps, 88);
AT(CUmemPoolProps, allocType, 0);
AT(CUmemPoolProps, handleTypes, 4);
AT(CUmemPoolProps, location, 8);
AT(CUmemPoolProps, maxSize, 24);
AT(CUmemPoolProps, usage, 32);
SIZE(CUlaunchConfig, 56);
AT(CUlaunchConfig, gridDimX, 0);
AT(CUlaunchConfig, blockDimX, 12);
AT(CUlaunchConfig, sharedMemBytes, 24);
AT(CUlaunchConfig, hStream, 32);
AT(CUlaunchConfig, attrs, 40);
AT(CUlaunchConfig, numAttrs, 48);
SIZE(CUDA_MEM_ALLOC_NODE_PARAMS, 120);
AT(CUDA_MEM_ALLOC_NODE_PARAMS, poolProps, 0);
AT(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize, 104);
AT(CUDA_MEM_ALLOC_NODE_PARAMS, dptr, 112);
SIZE(CUgraphNodeParams, 256);
AT(CUgraphNodeParams, type, 0);
AT(CUgraphNodeParams, alloc, 16);
SIZE(CUDA_KERNEL_NODE_PARAMS, 72);
SIZE(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, 104);
SIZE(CUipcMemHandle, 64);
SIZE(CUmemPoolPtrExportData, 64);
SIZE(CUDA_LAUNCH_PARAMS, 56);
AT(CUDA_LAUNCH_PARAMS, hStream, 40);
SIZE(CUDA_RESOURCE_DESC, 144);
AT(CUDA_RESOURCE_DESC, res, 8);
AT(CUDA_RESOURCE_DESC, flags, 136);
SIZE(CUDA_TEXTURE_DESC, 104);
AT(CUDA_TEXTURE_DESC, borderColor, 40);
SIZE(CUDA_RESOURCE_VIEW_DESC, 112);
AT(CUDA_RESOURCE_VIEW_DESC, firstMipmapLevel, 32);
VALUE(CU_MEM_LOCATION_DEVICE, 1);
VALUE(CU_MEM_LOCATION_HOST_NUMA_CURRENT, 4);
VALUE(CU_POOL_RELEASE_THRESHOLD, 4);
VALUE(CU_POOL_RESERVED_CURRENT, 5);
VALUE(CU_POOL_USED_CURRENT, 7);
VALUE(CU_GRAPH_MEM_RESERVED_CURRENT, 2);
VALUE(CU_GRAPH_MEM_USED_CURRENT, 0);
VALUE(CU_NODE_MEM_ALLOC, 10);
VALUE(CU_NODE_KERNEL, 0);
VALUE(CUDA_ERROR_OUT_OF_MEMORY, 2);
VALUE(CUDA_ERROR_NOT_INITIALIZED, 3);
VALUE(CUDA_ERROR_NO_DEVICE, 100);
VALUE(CUDA_ERROR_NOT_READY, 600);
VALUE(CUDA_ERROR_NOT_FOUND, 500);
VALUE(CU_CAPTURE_NONE, 0);
VALUE(CU_GET_PROC_ADDRESS_LEGACY_STREAM, 1);
VALUE(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 2);
VALUE(CU_EVENT_DISABLE_TIMING, 2);

int main(void)
{
	return 0;
}
