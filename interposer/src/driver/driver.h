// SPDX-License-Identifier: Apache-2.0

// This header declares calls of the real driver, with types.

#ifndef VG_DRIVER_H
#define VG_DRIVER_H

#include "cuda_abi.h"
#include "load/real.h"

// VG_DRIVER_FUNCTIONS(X) calls X(name, arguments) for every function of the driver that the
// interposer calls.
#define VG_DRIVER_FUNCTIONS(X)                                                                     \
	X(cuInit, unsigned)                                                                        \
	X(cuGetProcAddress, const char *, void **, int, uint64_t)                                  \
	X(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)                        \
	X(cuDeviceGetCount, int *)                                                                 \
	X(cuDeviceGet, CUdevice *, int)                                                            \
	X(cuDeviceGetAttribute, int *, int, CUdevice)                                              \
	X(cuDeviceGetUuid, CUuuid *, CUdevice)                                                     \
	X(cuDeviceGetUuid_v2, CUuuid *, CUdevice)                                                  \
	X(cuDeviceTotalMem, unsigned *, CUdevice)                                                  \
	X(cuDeviceTotalMem_v2, size_t *, CUdevice)                                                 \
	X(cuMemGetInfo, unsigned *, unsigned *)                                                    \
	X(cuMemGetInfo_v2, size_t *, size_t *)                                                     \
	X(cuCtxGetCurrent, CUcontext *)                                                            \
	X(cuCtxGetDevice, CUdevice *)                                                              \
	X(cuCtxPushCurrent_v2, CUcontext)                                                          \
	X(cuCtxPopCurrent_v2, CUcontext *)                                                         \
	X(cuCtxCreate, CUcontext *, unsigned, CUdevice)                                            \
	X(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice)                                         \
	X(cuCtxCreate_v3, CUcontext *, void *, int, unsigned, CUdevice)                            \
	X(cuCtxCreate_v4, CUcontext *, void *, unsigned, CUdevice)                                 \
	X(cuCtxDestroy, CUcontext)                                                                 \
	X(cuCtxDestroy_v2, CUcontext)                                                              \
	X(cuCtxDetach, CUcontext)                                                                  \
	X(cuCtxGetApiVersion, CUcontext, unsigned *)                                               \
	X(cuCtxGetLimit, size_t *, int)                                                            \
	X(cuCtxSetLimit, int, size_t)                                                              \
	X(cuCtxSynchronize, void)                                                                  \
	X(cuCtxSynchronize_v2, CUcontext)                                                          \
	X(cuDevicePrimaryCtxGetState, CUdevice, unsigned *, int *)                                 \
	X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                         \
	X(cuDevicePrimaryCtxRelease, CUdevice)                                                     \
	X(cuDevicePrimaryCtxRelease_v2, CUdevice)                                                  \
	X(cuDevicePrimaryCtxReset, CUdevice)                                                       \
	X(cuDevicePrimaryCtxReset_v2, CUdevice)                                                    \
	X(cuGreenCtxCreate, CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned)                   \
	X(cuGreenCtxDestroy, CUgreenCtx)                                                           \
	X(cuCtxFromGreenCtx, CUcontext *, CUgreenCtx)                                              \
	X(cuGLCtxCreate, CUcontext *, unsigned, CUdevice)                                          \
	X(cuGLCtxCreate_v2, CUcontext *, unsigned, CUdevice)                                       \
	X(cuVDPAUCtxCreate, CUcontext *, unsigned, CUdevice, uint32_t, void *)                     \
	X(cuVDPAUCtxCreate_v2, CUcontext *, unsigned, CUdevice, uint32_t, void *)                  \
	X(cuMemAlloc, CUdeviceptr_v1 *, unsigned)                                                  \
	X(cuMemAlloc_v2, CUdeviceptr *, size_t)                                                    \
	X(cuMemAllocPitch, CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned)             \
	X(cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned)                   \
	X(cuMemAllocManaged, CUdeviceptr *, size_t, unsigned)                                      \
	X(cuMemFree, CUdeviceptr_v1)                                                               \
	X(cuMemFree_v2, CUdeviceptr)                                                               \
	X(cuArrayCreate, CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *)                              \
	X(cuArrayCreate_v2, CUarray *, const CUDA_ARRAY_DESCRIPTOR *)                              \
	X(cuArray3DCreate, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *)                          \
	X(cuArray3DCreate_v2, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *)                          \
	X(cuArrayDestroy, CUarray)                                                                 \
	X(cuArrayGetMemoryRequirements, CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUarray, CUdevice)       \
	X(cuMipmappedArrayCreate, CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned)   \
	X(cuMipmappedArrayDestroy, CUmipmappedArray)                                               \
	X(cuMipmappedArrayGetMemoryRequirements, CUDA_ARRAY_MEMORY_REQUIREMENTS *,                 \
	  CUmipmappedArray, CUdevice)                                                              \
	X(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream)                                        \
	X(cuMemAllocAsync_ptsz, CUdeviceptr *, size_t, CUstream)                                   \
	X(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream)                  \
	X(cuMemAllocFromPoolAsync_ptsz, CUdeviceptr *, size_t, CUmemoryPool, CUstream)             \
	X(cuMemFreeAsync, CUdeviceptr, CUstream)                                                   \
	X(cuMemFreeAsync_ptsz, CUdeviceptr, CUstream)                                              \
	X(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *)                                 \
	X(cuMemPoolDestroy, CUmemoryPool)                                                          \
	X(cuMemPoolTrimTo, CUmemoryPool, size_t)                                                   \
	X(cuMemPoolImportFromShareableHandle, CUmemoryPool *, void *, int, unsigned long long)     \
	X(cuMemPoolImportPointer, CUdeviceptr *, CUmemoryPool, void *)                             \
	X(cuMemPoolGetAttribute, CUmemoryPool, int, void *)                                        \
	X(cuDeviceGetMemPool, CUmemoryPool *, CUdevice)                                            \
	X(cuDeviceGetDefaultMemPool, CUmemoryPool *, CUdevice)                                     \
	X(cuDeviceGetGraphMemAttribute, CUdevice, int, void *)                                     \
	X(cuDeviceGraphMemTrim, CUdevice)                                                          \
	X(cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,        \
	  unsigned long long)                                                                      \
	X(cuMemRelease, CUmemGenericAllocationHandle)                                              \
	X(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) \
	X(cuMemUnmap, CUdeviceptr, size_t)                                                         \
	X(cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *, void *)                     \
	X(cuGraphInstantiate, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)               \
	X(cuGraphInstantiate_v2, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)            \
	X(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)                 \
	X(cuGraphInstantiateWithParams, CUgraphExec *, CUgraph, void *)                            \
	X(cuGraphInstantiateWithParams_ptsz, CUgraphExec *, CUgraph, void *)                       \
	X(cuGraphLaunch, CUgraphExec, CUstream)                                                    \
	X(cuGraphLaunch_ptsz, CUgraphExec, CUstream)                                               \
	X(cuGraphUpload, CUgraphExec, CUstream)                                                    \
	X(cuGraphUpload_ptsz, CUgraphExec, CUstream)                                               \
	X(cuGraphExecDestroy, CUgraphExec)                                                         \
	X(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *)                                       \
	X(cuGraphNodeGetType, CUgraphNode, int *)                                                  \
	X(cuGraphChildGraphNodeGetGraph, CUgraphNode, CUgraph *)                                   \
	X(cuGraphMemAllocNodeGetParams, CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS *)                 \
	X(cuModuleLoad, CUmodule *, const char *)                                                  \
	X(cuModuleLoadData, CUmodule *, const void *)                                              \
	X(cuModuleLoadDataEx, CUmodule *, const void *, unsigned, int *, void **)                  \
	X(cuModuleLoadFatBinary, CUmodule *, const void *)                                         \
	X(cuModuleGetFunction, CUfunction *, CUmodule, const char *)                               \
	X(cuModuleGetGlobal, CUdeviceptr_v1 *, unsigned *, CUmodule, const char *)                 \
	X(cuModuleGetGlobal_v2, CUdeviceptr *, size_t *, CUmodule, const char *)                   \
	X(cuLibraryGetGlobal, CUdeviceptr *, size_t *, CUlibrary, const char *)                    \
	X(cuLibraryGetManaged, CUdeviceptr *, size_t *, CUlibrary, const char *)                   \
	X(cuLibraryGetKernel, CUkernel *, CUlibrary, const char *)                                 \
	X(cuLibraryGetModule, CUmodule *, CUlibrary)                                               \
	X(cuKernelGetFunction, CUfunction *, CUkernel)                                             \
	X(cuFuncLoad, CUfunction)                                                                  \
	X(cuFuncGetAttribute, int *, int, CUfunction)                                              \
	X(cuFuncGetModule, CUmodule *, CUfunction)                                                 \
	X(cuFuncSetAttribute, CUfunction, int, int)                                                \
	X(cuKernelGetAttribute, int *, int, CUkernel, CUdevice)                                    \
	X(cuKernelSetAttribute, int, int, CUkernel, CUdevice)                                      \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, int *, CUfunction, int, size_t)             \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int *, CUfunction, int, size_t, unsigned) \
	X(cuGraphExecUpdate, CUgraphExec, CUgraph, CUgraphNode *, int *)                           \
	X(cuGraphExecUpdate_v2, CUgraphExec, CUgraph, void *)                                      \
	X(cuGraphExecKernelNodeSetParams, CUgraphExec, CUgraphNode, const void *)                  \
	X(cuGraphExecKernelNodeSetParams_v2, CUgraphExec, CUgraphNode, const void *)               \
	X(cuModuleGetLoadingMode, int *)                                                           \
	X(cuGraphKernelNodeGetParams, CUgraphNode, void *)                                         \
	X(cuGraphKernelNodeGetParams_v2, CUgraphNode, void *)                                      \
	X(cuModuleEnumerateFunctions, CUfunction *, unsigned, CUmodule)                            \
	X(cuLibraryEnumerateKernels, CUkernel *, unsigned, CUlibrary)                              \
	X(cuModuleGetFunctionCount, unsigned *, CUmodule)                                          \
	X(cuLibraryGetKernelCount, unsigned *, CUlibrary)                                          \
	X(cuModuleUnload, CUmodule)                                                                \
	X(cuLibraryLoadData, CUlibrary *, const void *, int *, void **, unsigned, int *, void **,  \
	  unsigned)                                                                                \
	X(cuLibraryLoadFromFile, CUlibrary *, const char *, int *, void **, unsigned, int *,       \
	  void **, unsigned)                                                                       \
	X(cuLibraryUnload, CUlibrary)                                                              \
	X(cuStreamBeginCapture, CUstream)                                                          \
	X(cuStreamBeginCapture_ptsz, CUstream)                                                     \
	X(cuStreamBeginCapture_v2, CUstream, int)                                                  \
	X(cuStreamBeginCapture_v2_ptsz, CUstream, int)                                             \
	X(cuStreamBeginCaptureToGraph, CUstream, CUgraph, const CUgraphNode *, const void *,       \
	  size_t, int)                                                                             \
	X(cuStreamBeginCaptureToGraph_ptsz, CUstream, CUgraph, const CUgraphNode *, const void *,  \
	  size_t, int)                                                                             \
	X(cuStreamWaitEvent, CUstream, CUevent, unsigned)                                          \
	X(cuStreamWaitEvent_ptsz, CUstream, CUevent, unsigned)                                     \
	X(cuStreamEndCapture, CUstream, CUgraph *)                                                 \
	X(cuStreamEndCapture_ptsz, CUstream, CUgraph *)                                            \
	X(cuStreamEndCaptureToCig, CUstream)                                                       \
	X(cuStreamEndCaptureToCig_ptsz, CUstream)                                                  \
	X(cuStreamBeginCaptureToCig, CUstream, void *)                                             \
	X(cuStreamBeginCaptureToCig_ptsz, CUstream, void *)                                        \
	X(cuStreamBeginRecaptureToGraph, CUstream, int, CUgraph, void *, void *)                   \
	X(cuStreamBeginRecaptureToGraph_ptsz, CUstream, int, CUgraph, void *, void *)              \
	X(cuStreamIsCapturing, CUstream, int *)                                                    \
	X(cuStreamIsCapturing_ptsz, CUstream, int *)                                               \
	X(cuStreamGetCaptureInfo, CUstream, int *, uint64_t *)                                     \
	X(cuStreamGetCaptureInfo_ptsz, CUstream, int *, uint64_t *)                                \
	X(cuStreamGetCtx, CUstream, CUcontext *)                                                   \
	X(cuStreamGetDevice, CUstream, CUdevice *)                                                 \
	X(cuStreamSynchronize, CUstream)                                                           \
	X(cuStreamSynchronize_ptsz, CUstream)                                                      \
	X(cuMemHostAlloc, void **, size_t, unsigned)                                               \
	X(cuMemHostGetDevicePointer_v2, CUdeviceptr *, void *, unsigned)                           \
	X(cuMemsetD8, CUdeviceptr_v1, uint8_t, unsigned)                                           \
	X(cuMemsetD8_v2, CUdeviceptr, uint8_t, size_t)                                             \
	X(cuMemsetD8_v2_ptds, CUdeviceptr, uint8_t, size_t)                                        \
	X(cuMemsetD8Async, CUdeviceptr, uint8_t, size_t, CUstream)                                 \
	X(cuMemsetD8Async_ptsz, CUdeviceptr, uint8_t, size_t, CUstream)                            \
	X(cuMemsetD16, CUdeviceptr_v1, uint16_t, unsigned)                                         \
	X(cuMemsetD16_v2, CUdeviceptr, uint16_t, size_t)                                           \
	X(cuMemsetD16_v2_ptds, CUdeviceptr, uint16_t, size_t)                                      \
	X(cuMemsetD16Async, CUdeviceptr, uint16_t, size_t, CUstream)                               \
	X(cuMemsetD16Async_ptsz, CUdeviceptr, uint16_t, size_t, CUstream)                          \
	X(cuMemsetD32, CUdeviceptr_v1, uint32_t, unsigned)                                         \
	X(cuMemsetD32_v2, CUdeviceptr, uint32_t, size_t)                                           \
	X(cuMemsetD32_v2_ptds, CUdeviceptr, uint32_t, size_t)                                      \
	X(cuMemsetD32Async, CUdeviceptr, uint32_t, size_t, CUstream)                               \
	X(cuMemsetD32Async_ptsz, CUdeviceptr, uint32_t, size_t, CUstream)                          \
	X(cuMemsetD2D8, CUdeviceptr_v1, unsigned, uint8_t, unsigned, unsigned)                     \
	X(cuMemsetD2D8_v2, CUdeviceptr, size_t, uint8_t, size_t, size_t)                           \
	X(cuMemsetD2D8_v2_ptds, CUdeviceptr, size_t, uint8_t, size_t, size_t)                      \
	X(cuMemsetD2D8Async, CUdeviceptr, size_t, uint8_t, size_t, size_t, CUstream)               \
	X(cuMemsetD2D8Async_ptsz, CUdeviceptr, size_t, uint8_t, size_t, size_t, CUstream)          \
	X(cuMemsetD2D16, CUdeviceptr_v1, unsigned, uint16_t, unsigned, unsigned)                   \
	X(cuMemsetD2D16_v2, CUdeviceptr, size_t, uint16_t, size_t, size_t)                         \
	X(cuMemsetD2D16_v2_ptds, CUdeviceptr, size_t, uint16_t, size_t, size_t)                    \
	X(cuMemsetD2D16Async, CUdeviceptr, size_t, uint16_t, size_t, size_t, CUstream)             \
	X(cuMemsetD2D16Async_ptsz, CUdeviceptr, size_t, uint16_t, size_t, size_t, CUstream)        \
	X(cuMemsetD2D32, CUdeviceptr_v1, unsigned, uint32_t, unsigned, unsigned)                   \
	X(cuMemsetD2D32_v2, CUdeviceptr, size_t, uint32_t, size_t, size_t)                         \
	X(cuMemsetD2D32_v2_ptds, CUdeviceptr, size_t, uint32_t, size_t, size_t)                    \
	X(cuMemsetD2D32Async, CUdeviceptr, size_t, uint32_t, size_t, size_t, CUstream)             \
	X(cuMemsetD2D32Async_ptsz, CUdeviceptr, size_t, uint32_t, size_t, size_t, CUstream)        \
	X(cuMemcpyDtoD, CUdeviceptr_v1, CUdeviceptr_v1, unsigned)                                  \
	X(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t)                                       \
	X(cuMemcpyDtoD_v2_ptds, CUdeviceptr, CUdeviceptr, size_t)                                  \
	X(cuMemcpyDtoDAsync, CUdeviceptr_v1, CUdeviceptr_v1, unsigned, CUstream)                   \
	X(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t, CUstream)                        \
	X(cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, CUdeviceptr, size_t, CUstream)                   \
	X(cuMemcpy, CUdeviceptr, CUdeviceptr, size_t)                                              \
	X(cuMemcpy_ptds, CUdeviceptr, CUdeviceptr, size_t)                                         \
	X(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, size_t, CUstream)                               \
	X(cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, size_t, CUstream)                          \
	X(cuMemcpyHtoD, CUdeviceptr_v1, const void *, unsigned)                                    \
	X(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)                                      \
	X(cuMemcpyHtoD_v2_ptds, CUdeviceptr, const void *, size_t)                                 \
	X(cuMemcpyDtoH, void *, CUdeviceptr_v1, unsigned)                                          \
	X(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)                                            \
	X(cuMemcpyDtoH_v2_ptds, void *, CUdeviceptr, size_t)                                       \
	X(cuMemcpyHtoDAsync, CUdeviceptr_v1, const void *, unsigned, CUstream)                     \
	X(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream)                       \
	X(cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *, size_t, CUstream)                  \
	X(cuMemcpyDtoHAsync, void *, CUdeviceptr_v1, unsigned, CUstream)                           \
	X(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, CUstream)                             \
	X(cuMemcpyDtoHAsync_v2_ptsz, void *, CUdeviceptr, size_t, CUstream)                        \
	X(cuMemcpyHtoA, CUarray, unsigned, const void *, unsigned)                                 \
	X(cuMemcpyHtoA_v2, CUarray, size_t, const void *, size_t)                                  \
	X(cuMemcpyHtoA_v2_ptds, CUarray, size_t, const void *, size_t)                             \
	X(cuMemcpyAtoH, void *, CUarray, unsigned, unsigned)                                       \
	X(cuMemcpyAtoH_v2, void *, CUarray, size_t, size_t)                                        \
	X(cuMemcpyAtoH_v2_ptds, void *, CUarray, size_t, size_t)                                   \
	X(cuMemcpyHtoAAsync, CUarray, unsigned, const void *, unsigned, CUstream)                  \
	X(cuMemcpyHtoAAsync_v2, CUarray, size_t, const void *, size_t, CUstream)                   \
	X(cuMemcpyHtoAAsync_v2_ptsz, CUarray, size_t, const void *, size_t, CUstream)              \
	X(cuMemcpyAtoHAsync, void *, CUarray, unsigned, unsigned, CUstream)                        \
	X(cuMemcpyAtoHAsync_v2, void *, CUarray, size_t, size_t, CUstream)                         \
	X(cuMemcpyAtoHAsync_v2_ptsz, void *, CUarray, size_t, size_t, CUstream)                    \
	X(cuMemcpy2D, const CUDA_MEMCPY2D_v1 *)                                                    \
	X(cuMemcpy2D_v2, const CUDA_MEMCPY2D *)                                                    \
	X(cuMemcpy2D_v2_ptds, const CUDA_MEMCPY2D *)                                               \
	X(cuMemcpy2DUnaligned, const CUDA_MEMCPY2D_v1 *)                                           \
	X(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *)                                           \
	X(cuMemcpy2DUnaligned_v2_ptds, const CUDA_MEMCPY2D *)                                      \
	X(cuMemcpy2DAsync, const CUDA_MEMCPY2D_v1 *, CUstream)                                     \
	X(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *, CUstream)                                     \
	X(cuMemcpy2DAsync_v2_ptsz, const CUDA_MEMCPY2D *, CUstream)                                \
	X(cuMemcpy3D, const CUDA_MEMCPY3D_v1 *)                                                    \
	X(cuMemcpy3D_v2, const CUDA_MEMCPY3D *)                                                    \
	X(cuMemcpy3D_v2_ptds, const CUDA_MEMCPY3D *)                                               \
	X(cuMemcpy3DAsync, const CUDA_MEMCPY3D_v1 *, CUstream)                                     \
	X(cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D *, CUstream)                                     \
	X(cuMemcpy3DAsync_v2_ptsz, const CUDA_MEMCPY3D *, CUstream)                                \
	X(cuMemcpy3DPeer, const CUDA_MEMCPY3D_PEER *)                                              \
	X(cuMemcpy3DPeer_ptds, const CUDA_MEMCPY3D_PEER *)                                         \
	X(cuMemcpy3DPeerAsync, const CUDA_MEMCPY3D_PEER *, CUstream)                               \
	X(cuMemcpy3DPeerAsync_ptsz, const CUDA_MEMCPY3D_PEER *, CUstream)                          \
	X(cuMemcpyDtoA, CUarray, unsigned, CUdeviceptr_v1, unsigned)                               \
	X(cuMemcpyDtoA_v2, CUarray, size_t, CUdeviceptr, size_t)                                   \
	X(cuMemcpyDtoA_v2_ptds, CUarray, size_t, CUdeviceptr, size_t)                              \
	X(cuMemcpyAtoD, CUdeviceptr_v1, CUarray, unsigned, unsigned)                               \
	X(cuMemcpyAtoD_v2, CUdeviceptr, CUarray, size_t, size_t)                                   \
	X(cuMemcpyAtoD_v2_ptds, CUdeviceptr, CUarray, size_t, size_t)                              \
	X(cuMemcpyAtoA, CUarray, unsigned, CUarray, unsigned, unsigned)                            \
	X(cuMemcpyAtoA_v2, CUarray, size_t, CUarray, size_t, size_t)                               \
	X(cuMemcpyAtoA_v2_ptds, CUarray, size_t, CUarray, size_t, size_t)                          \
	X(cuMemcpyPeer, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)                    \
	X(cuMemcpyPeer_ptds, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)               \
	X(cuMemcpyPeerAsync, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)     \
	X(cuMemcpyPeerAsync_ptsz, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)\
	X(cuMemcpyBatchAsync, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, CUstream) \
	X(cuMemcpyBatchAsync_ptsz, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, CUstream) \
	X(cuMemcpyBatchAsync_v2, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream) \
	X(cuMemcpyBatchAsync_v2_ptsz, CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream) \
	X(cuMemcpy3DBatchAsync, size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream) \
	X(cuMemcpy3DBatchAsync_ptsz, size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream) \
	X(cuMemcpy3DBatchAsync_v2, size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream) \
	X(cuMemcpy3DBatchAsync_v2_ptsz, size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream) \
	X(cuMemcpyWithAttributesAsync, CUdeviceptr, CUdeviceptr, size_t, void *, CUstream)          \
	X(cuMemcpyWithAttributesAsync_ptsz, CUdeviceptr, CUdeviceptr, size_t, void *, CUstream)     \
	X(cuMemcpy3DWithAttributesAsync, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream)   \
	X(cuMemcpy3DWithAttributesAsync_ptsz, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream) \
	X(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **) \
	X(cuLaunchKernel_ptsz, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **) \
	X(cuLaunchCooperativeKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **) \
	X(cuLaunchCooperativeKernel_ptsz, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **) \
	X(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **, void **)                  \
	X(cuLaunchKernelEx_ptsz, const CUlaunchConfig *, CUfunction, void **, void **)             \
	X(cuLaunch, CUfunction)                                                                    \
	X(cuLaunchGrid, CUfunction, int, int)                                                      \
	X(cuLaunchGridAsync, CUfunction, int, int, CUstream)                                       \
	X(cuLaunchCooperativeKernelMultiDevice, CUDA_LAUNCH_PARAMS *, unsigned, unsigned)          \
	X(cuStreamDestroy, CUstream)                                                               \
	X(cuStreamDestroy_v2, CUstream)                                                            \
	X(cuPointerGetAttribute, void *, int, CUdeviceptr)                                         \
	X(cuStreamCreate, CUstream *, unsigned)                                                    \
	X(cuEventCreate, CUevent *, unsigned)                                                      \
	X(cuEventDestroy_v2, CUevent)                                                              \
	X(cuEventRecord, CUevent, CUstream)                                                        \
	X(cuEventRecord_ptsz, CUevent, CUstream)                                                   \
	X(cuEventQuery, CUevent)                                                                   \
	X(cuEventElapsedTime, float *, CUevent, CUevent)                                           \
	X(cuStreamQuery, CUstream)                                                                 \
	X(cuStreamQuery_ptsz, CUstream)                                                            \
	X(cuEventSynchronize, CUevent)                                                             \
	X(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)                           \
	X(cuMemExportToShareableHandle, void *, CUmemGenericAllocationHandle, int, unsigned long long) \
	X(cuMemMapArrayAsync, CUarrayMapInfo *, unsigned, CUstream)                                \
	X(cuMemMapArrayAsync_ptsz, CUarrayMapInfo *, unsigned, CUstream)                           \
	X(cuMemGetHandleForAddressRange, void *, CUdeviceptr, size_t, int, unsigned long long)     \
	X(cuMulticastBindMem, CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, \
	  size_t, unsigned long long)                                                              \
	X(cuMulticastBindMem_v2, CUmemGenericAllocationHandle, CUdevice, size_t,                   \
	  CUmemGenericAllocationHandle, size_t, size_t, unsigned long long)                        \
	X(cuLogicalEndpointBindMem, uint32_t, CUdevice, uint64_t, CUmemGenericAllocationHandle, uint64_t, \
	  uint64_t, unsigned long long)                                                            \
	X(cuMulticastBindAddr, CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long) \
	X(cuMulticastBindAddr_v2, CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr, size_t, \
	  unsigned long long)                                                                      \
	X(cuLogicalEndpointBindAddr, uint32_t, CUdevice, uint64_t, void *, uint64_t, unsigned long long) \
	X(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int)             \
	X(cuMemGetAllocationPropertiesFromHandle, CUmemAllocationProp *, CUmemGenericAllocationHandle) \
	X(cuMemGetAllocationGranularity, size_t *, const CUmemAllocationProp *, int)                \
	X(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)     \
	X(cuMemAddressFree, CUdeviceptr, size_t)                                                   \
	X(cuIpcOpenMemHandle, CUdeviceptr *, CUipcMemHandle, unsigned)                             \
	X(cuIpcOpenMemHandle_v2, CUdeviceptr *, CUipcMemHandle, unsigned)                          \
	X(cuIpcCloseMemHandle, CUdeviceptr)                                                        \
	X(cuImportExternalMemory, void **, const void *)                                           \
	X(cuDestroyExternalMemory, void *)                                                         \
	X(cuThreadExchangeStreamCaptureMode, int *)

#define VG_DRIVER_TYPE(name, ...) typedef CUresult (*vg_##name##_fn)(__VA_ARGS__);
VG_DRIVER_FUNCTIONS(VG_DRIVER_TYPE)
#undef VG_DRIVER_TYPE

// VG_CALL calls the real driver.
#define VG_CALL(name, ...) \
	(((vg_##name##_fn)(void (*)(void))vg_real_known(VG_SYM_##name))(__VA_ARGS__))

// vg_real_known returns vg_real(index), without a call if the function is known.
static inline vg_function vg_real_known(uint32_t index)
{
	vg_function function = atomic_load_explicit(&vg_real_functions[index], memory_order_acquire);

	return function ? function : vg_real(index);
}

// VG_API begins the definition of the interposer's function for a name of the driver.
#define VG_API(name, ...)                 \
	CUresult vg_##name(__VA_ARGS__);  \
	CUresult vg_##name(__VA_ARGS__)

#endif
