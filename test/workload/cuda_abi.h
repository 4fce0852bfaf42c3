// SPDX-License-Identifier: Apache-2.0

// This header declares the part of the CUDA driver's binary interface that the workloads use.
// Therefore, the build of the workloads needs no CUDA toolkit. Sizes and offsets are from CUDA 13.0
// on x86-64. The compiler checks the sizes and offsets.

#ifndef WORKLOAD_CUDA_ABI_H
#define WORKLOAD_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct {
	unsigned char bytes[16];
} CUuuid;

// These constants are values of the enumerations that the workloads use.
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CU_MEM_ATTACH_GLOBAL = 1,
	CU_AD_FORMAT_UNSIGNED_INT8 = 1,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
	CU_DEV_RESOURCE_TYPE_SM = 1,
	CU_GREEN_CTX_DEFAULT_STREAM = 1,
	CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
};

typedef struct {
	size_t width;
	size_t height;
	int format;
	unsigned channels;
} CUarrayDescriptor;

typedef struct {
	size_t width;
	size_t height;
	size_t depth;
	int format;
	unsigned channels;
	unsigned flags;
} CUarray3DDescriptor;

typedef struct {
	size_t size;
	size_t alignment;
	unsigned reserved[4];
} CUarrayMemoryRequirements;

typedef struct {
	int type;
	int id;
} CUmemLocation;

typedef struct {
	int type;
	int requested_handle_types;
	CUmemLocation location;
	void *win32_metadata;
	unsigned char alloc_flags[8];
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

typedef struct {
	int alloc_type;
	int handle_types;
	CUmemLocation location;
	void *win32_attributes;
	size_t max_size;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	CUmemPoolProps pool;
	const CUmemAccessDesc *access;
	size_t access_count;
	size_t bytes;
	CUdeviceptr pointer;
} CUmemAllocNodeParams;

typedef struct {
	int type;
	int padding[3];
	union {
		CUmemAllocNodeParams alloc;
		long long room[29];
	};
	long long tail;
} CUgraphNodeParams;

typedef struct {
	CUfunction function;
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	void **params;
	void **extra;
	void *kernel;
	CUcontext context;
} CUkernelNodeParams;

typedef struct {
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	CUstream stream;
	void *attributes;
	unsigned attribute_count;
} CUlaunchConfig;

typedef struct {
	CUfunction function;
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
	CUstream stream;
	void **params;
} CUlaunchParams;

typedef struct {
	void *affinity;
	int affinity_count;
	void *cig;
} CUctxCreateParams;

// CUdevResource is a device resource. Programs only pass a device resource from call to call.
// Drivers write at most 144 bytes, and the rest is reserved for later drivers.
typedef struct {
	unsigned char opaque[256];
} CUdevResource;

_Static_assert(sizeof(CUarrayDescriptor) == 24, "array descriptor");
_Static_assert(sizeof(CUarray3DDescriptor) == 40, "3D array descriptor");
_Static_assert(sizeof(CUarrayMemoryRequirements) == 32, "requirements");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "allocation properties");
_Static_assert(offsetof(CUmemAllocationProp, alloc_flags) == 24, "flags");
_Static_assert(sizeof(CUmemPoolProps) == 88, "pool properties");
_Static_assert(offsetof(CUmemPoolProps, usage) == 32, "pool usage");
_Static_assert(sizeof(CUmemAllocNodeParams) == 120, "memory node");
_Static_assert(offsetof(CUmemAllocNodeParams, bytes) == 104, "node bytes");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "node parameters");
_Static_assert(offsetof(CUgraphNodeParams, alloc) == 16, "node union");
_Static_assert(sizeof(CUkernelNodeParams) == 72, "kernel node");
_Static_assert(sizeof(CUlaunchConfig) == 56, "launch configuration");
_Static_assert(offsetof(CUlaunchConfig, stream) == 32, "launch stream");
_Static_assert(sizeof(CUlaunchParams) == 56, "multi-device launch");
_Static_assert(offsetof(CUlaunchParams, stream) == 40, "multi-device stream");
_Static_assert(sizeof(CUctxCreateParams) == 24, "context parameters");

#endif
