// SPDX-License-Identifier: Apache-2.0

// This header covers the look-up of the CUDA driver's functions at run time. dlopen opens the
// driver. cuGetProcAddress returns each function, as for CUDA's runtime library, or dlsym returns
// each function, as for other frameworks.

#ifndef WORKLOAD_DRIVER_H
#define WORKLOAD_DRIVER_H

#include <stdbool.h>

#include "cuda_abi.h"

// WL_DRIVER_FUNCTIONS lists every driver function that a workload calls. An entry is X(member,
// requested name, requested version, flags, exported name, arguments). If CUDA's runtime library
// requests a function, the version is the version that the library requests.
#define WL_DRIVER_FUNCTIONS(X)                                                 \
	X(init, "cuInit", 2000, 0, "cuInit", unsigned)                         \
	X(driver_version, "cuDriverGetVersion", 2020, 0, "cuDriverGetVersion", \
	  int *)                                                               \
	X(error_name, "cuGetErrorName", 6000, 0, "cuGetErrorName", CUresult,   \
	  const char **)                                                       \
	X(device_count, "cuDeviceGetCount", 2000, 0, "cuDeviceGetCount", int *) \
	X(device_get, "cuDeviceGet", 2000, 0, "cuDeviceGet", CUdevice *, int)  \
	X(device_name, "cuDeviceGetName", 2000, 0, "cuDeviceGetName", char *,  \
	  int, CUdevice)                                                       \
	X(device_uuid, "cuDeviceGetUuid", 9020, 0, "cuDeviceGetUuid",          \
	  CUuuid *, CUdevice)                                                  \
	X(device_total, "cuDeviceTotalMem", 3020, 0, "cuDeviceTotalMem_v2",    \
	  size_t *, CUdevice)                                                  \
	X(device_attribute, "cuDeviceGetAttribute", 2000, 0,                   \
	  "cuDeviceGetAttribute", int *, int, CUdevice)                        \
	X(primary_retain, "cuDevicePrimaryCtxRetain", 7000, 0,                 \
	  "cuDevicePrimaryCtxRetain", CUcontext *, CUdevice)                   \
	X(primary_release, "cuDevicePrimaryCtxRelease", 7000, 0,               \
	  "cuDevicePrimaryCtxRelease", CUdevice)                               \
	X(ctx_create, "cuCtxCreate", 3020, 0, "cuCtxCreate_v2", CUcontext *,   \
	  unsigned, CUdevice)                                                  \
	X(ctx_create_v3, "cuCtxCreate", 11040, 0, "cuCtxCreate_v3",            \
	  CUcontext *, void *, int, unsigned, CUdevice)                        \
	X(ctx_create_v4, "cuCtxCreate", 12050, 0, "cuCtxCreate_v4",            \
	  CUcontext *, CUctxCreateParams *, unsigned, CUdevice)                \
	X(ctx_destroy, "cuCtxDestroy", 4000, 0, "cuCtxDestroy_v2", CUcontext)  \
	X(ctx_set_current, "cuCtxSetCurrent", 4000, 0, "cuCtxSetCurrent",      \
	  CUcontext)                                                           \
	X(ctx_synchronize, "cuCtxSynchronize", 2000, 0, "cuCtxSynchronize",    \
	  void)                                                                \
	X(device_resource, "cuDeviceGetDevResource", 12040, 0,                 \
	  "cuDeviceGetDevResource", CUdevice, CUdevResource *, int)            \
	X(resource_desc, "cuDevResourceGenerateDesc", 12040, 0,                \
	  "cuDevResourceGenerateDesc", CUdevResourceDesc *, CUdevResource *,   \
	  unsigned)                                                            \
	X(green_create, "cuGreenCtxCreate", 12040, 0, "cuGreenCtxCreate",      \
	  CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned)                 \
	X(green_destroy, "cuGreenCtxDestroy", 12040, 0, "cuGreenCtxDestroy",   \
	  CUgreenCtx)                                                          \
	X(green_stream, "cuGreenCtxStreamCreate", 12050, 0,                    \
	  "cuGreenCtxStreamCreate", CUstream *, CUgreenCtx, unsigned, int)     \
	X(mem_info, "cuMemGetInfo", 3020, 0, "cuMemGetInfo_v2", size_t *,      \
	  size_t *)                                                            \
	X(mem_alloc_v1, "cuMemAlloc", 2000, 0, "cuMemAlloc", unsigned *,       \
	  unsigned)                                                            \
	X(mem_free_v1, "cuMemFree", 2000, 0, "cuMemFree", unsigned)            \
	X(mem_alloc, "cuMemAlloc", 3020, 0, "cuMemAlloc_v2", CUdeviceptr *,    \
	  size_t)                                                              \
	X(mem_free, "cuMemFree", 3020, 0, "cuMemFree_v2", CUdeviceptr)         \
	X(memcpy_dtoh, "cuMemcpyDtoH", 3020, 0, "cuMemcpyDtoH_v2", void *,     \
	  CUdeviceptr, size_t)                                                 \
	X(mem_alloc_pitch, "cuMemAllocPitch", 3020, 0, "cuMemAllocPitch_v2",   \
	  CUdeviceptr *, size_t *, size_t, size_t, unsigned)                   \
	X(mem_alloc_managed, "cuMemAllocManaged", 6000, 0,                     \
	  "cuMemAllocManaged", CUdeviceptr *, size_t, unsigned)                \
	X(mem_alloc_async, "cuMemAllocAsync", 11020, 0, "cuMemAllocAsync",     \
	  CUdeviceptr *, size_t, CUstream)                                     \
	X(mem_alloc_async_ptsz, "cuMemAllocAsync", 11020,                      \
	  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,                       \
	  "cuMemAllocAsync_ptsz", CUdeviceptr *, size_t, CUstream)             \
	X(mem_free_async, "cuMemFreeAsync", 11020, 0, "cuMemFreeAsync",        \
	  CUdeviceptr, CUstream)                                               \
	X(pool_create, "cuMemPoolCreate", 11020, 0, "cuMemPoolCreate",         \
	  CUmemoryPool *, const CUmemPoolProps *)                              \
	X(pool_trim, "cuMemPoolTrimTo", 11020, 0, "cuMemPoolTrimTo",           \
	  CUmemoryPool, size_t)                                                \
	X(pool_default, "cuDeviceGetDefaultMemPool", 11020, 0,                 \
	  "cuDeviceGetDefaultMemPool", CUmemoryPool *, CUdevice)               \
	X(pool_alloc, "cuMemAllocFromPoolAsync", 11020, 0,                     \
	  "cuMemAllocFromPoolAsync", CUdeviceptr *, size_t, CUmemoryPool,      \
	  CUstream)                                                            \
	X(array_create, "cuArrayCreate", 3020, 0, "cuArrayCreate_v2",          \
	  CUarray *, const CUarrayDescriptor *)                                \
	X(array3d_create, "cuArray3DCreate", 3020, 0, "cuArray3DCreate_v2",    \
	  CUarray *, const CUarray3DDescriptor *)                              \
	X(array_destroy, "cuArrayDestroy", 2000, 0, "cuArrayDestroy", CUarray) \
	X(mipmap_create, "cuMipmappedArrayCreate", 5000, 0,                    \
	  "cuMipmappedArrayCreate", CUmipmappedArray *,                        \
	  const CUarray3DDescriptor *, unsigned)                               \
	X(mipmap_destroy, "cuMipmappedArrayDestroy", 5000, 0,                  \
	  "cuMipmappedArrayDestroy", CUmipmappedArray)                         \
	X(vmm_granularity, "cuMemGetAllocationGranularity", 10020, 0,          \
	  "cuMemGetAllocationGranularity", size_t *,                           \
	  const CUmemAllocationProp *, int)                                    \
	X(vmm_create, "cuMemCreate", 10020, 0, "cuMemCreate",                  \
	  CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, \
	  unsigned long long)                                                  \
	X(vmm_release, "cuMemRelease", 10020, 0, "cuMemRelease",               \
	  CUmemGenericAllocationHandle)                                        \
	X(vmm_reserve, "cuMemAddressReserve", 10020, 0, "cuMemAddressReserve", \
	  CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)      \
	X(vmm_unreserve, "cuMemAddressFree", 10020, 0, "cuMemAddressFree",     \
	  CUdeviceptr, size_t)                                                 \
	X(vmm_map, "cuMemMap", 10020, 0, "cuMemMap", CUdeviceptr, size_t,      \
	  size_t, CUmemGenericAllocationHandle, unsigned long long)            \
	X(vmm_unmap, "cuMemUnmap", 10020, 0, "cuMemUnmap", CUdeviceptr,        \
	  size_t)                                                              \
	X(vmm_access, "cuMemSetAccess", 10020, 0, "cuMemSetAccess",            \
	  CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)                \
	X(host_alloc, "cuMemHostAlloc", 2020, 0, "cuMemHostAlloc", void **,     \
	  size_t, unsigned)                                                    \
	X(module_load, "cuModuleLoadData", 2000, 0, "cuModuleLoadData",        \
	  CUmodule *, const void *)                                            \
	X(module_unload, "cuModuleUnload", 2000, 0, "cuModuleUnload",          \
	  CUmodule)                                                            \
	X(module_function, "cuModuleGetFunction", 2000, 0,                     \
	  "cuModuleGetFunction", CUfunction *, CUmodule, const char *)         \
	X(stream_create, "cuStreamCreate", 2000, 0, "cuStreamCreate",          \
	  CUstream *, unsigned)                                                \
	X(stream_create_priority, "cuStreamCreateWithPriority", 5050, 0,       \
	  "cuStreamCreateWithPriority", CUstream *, unsigned, int)             \
	X(stream_destroy, "cuStreamDestroy", 4000, 0, "cuStreamDestroy_v2",    \
	  CUstream)                                                            \
	X(stream_query, "cuStreamQuery", 2000, 0, "cuStreamQuery", CUstream)   \
	X(stream_capturing, "cuStreamIsCapturing", 10000, 0,                   \
	  "cuStreamIsCapturing", CUstream, int *)                              \
	X(stream_context, "cuStreamGetCtx", 9020, 0, "cuStreamGetCtx",         \
	  CUstream, CUcontext *)                                               \
	X(stream_device, "cuStreamGetDevice", 12080, 0, "cuStreamGetDevice",   \
	  CUstream, CUdevice *)                                                \
	X(stream_synchronize, "cuStreamSynchronize", 2000, 0,                  \
	  "cuStreamSynchronize", CUstream)                                     \
	X(stream_synchronize_ptsz, "cuStreamSynchronize", 7000,                \
	  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,                       \
	  "cuStreamSynchronize_ptsz", CUstream)                                \
	X(stream_wait_event, "cuStreamWaitEvent", 3020, 0,                     \
	  "cuStreamWaitEvent", CUstream, CUevent, unsigned)                    \
	X(capture_begin, "cuStreamBeginCapture", 10010, 0,                     \
	  "cuStreamBeginCapture_v2", CUstream, int)                            \
	X(capture_end, "cuStreamEndCapture", 10000, 0, "cuStreamEndCapture",   \
	  CUstream, CUgraph *)                                                 \
	X(event_create, "cuEventCreate", 2000, 0, "cuEventCreate", CUevent *,  \
	  unsigned)                                                            \
	X(event_record, "cuEventRecord", 2000, 0, "cuEventRecord", CUevent,    \
	  CUstream)                                                            \
	X(event_record_ptsz, "cuEventRecord", 7000,                            \
	  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, "cuEventRecord_ptsz", \
	  CUevent, CUstream)                                                   \
	X(event_synchronize, "cuEventSynchronize", 2000, 0,                    \
	  "cuEventSynchronize", CUevent)                                       \
	X(event_query, "cuEventQuery", 2000, 0, "cuEventQuery", CUevent)       \
	X(event_elapsed, "cuEventElapsedTime", 2000, 0, "cuEventElapsedTime",  \
	  float *, CUevent, CUevent)                                           \
	X(launch, "cuLaunchKernel", 4000, 0, "cuLaunchKernel", CUfunction,     \
	  unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,          \
	  unsigned, CUstream, void **, void **)                                \
	X(launch_ptsz, "cuLaunchKernel", 7000,                                 \
	  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,                       \
	  "cuLaunchKernel_ptsz", CUfunction, unsigned, unsigned, unsigned,     \
	  unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)  \
	X(launch_ex, "cuLaunchKernelEx", 11060, 0, "cuLaunchKernelEx",         \
	  const CUlaunchConfig *, CUfunction, void **, void **)                \
	X(launch_coop, "cuLaunchCooperativeKernel", 9000, 0,                   \
	  "cuLaunchCooperativeKernel", CUfunction, unsigned, unsigned,         \
	  unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **) \
	X(launch_coop_multi, "cuLaunchCooperativeKernelMultiDevice", 9000, 0,  \
	  "cuLaunchCooperativeKernelMultiDevice", CUlaunchParams *, unsigned,  \
	  unsigned)                                                            \
	X(func_block_shape, "cuFuncSetBlockShape", 2000, 0,                    \
	  "cuFuncSetBlockShape", CUfunction, int, int, int)                    \
	X(param_set, "cuParamSetv", 2000, 0, "cuParamSetv", CUfunction, int,   \
	  void *, unsigned)                                                    \
	X(param_size, "cuParamSetSize", 2000, 0, "cuParamSetSize", CUfunction, \
	  unsigned)                                                            \
	X(launch_grid_async, "cuLaunchGridAsync", 2000, 0,                     \
	  "cuLaunchGridAsync", CUfunction, int, int, CUstream)                 \
	X(graph_create, "cuGraphCreate", 10000, 0, "cuGraphCreate", CUgraph *, \
	  unsigned)                                                            \
	X(graph_destroy, "cuGraphDestroy", 10000, 0, "cuGraphDestroy",         \
	  CUgraph)                                                             \
	X(graph_add_kernel, "cuGraphAddKernelNode", 12000, 0,                  \
	  "cuGraphAddKernelNode_v2", CUgraphNode *, CUgraph,                   \
	  const CUgraphNode *, size_t, const CUkernelNodeParams *)             \
	X(graph_add_alloc, "cuGraphAddMemAllocNode", 11040, 0,                 \
	  "cuGraphAddMemAllocNode", CUgraphNode *, CUgraph,                    \
	  const CUgraphNode *, size_t, CUmemAllocNodeParams *)                 \
	X(graph_add_node, "cuGraphAddNode", 12020, 0, "cuGraphAddNode",        \
	  CUgraphNode *, CUgraph, const CUgraphNode *, size_t,                 \
	  CUgraphNodeParams *)                                                 \
	X(graph_instantiate, "cuGraphInstantiateWithFlags", 11040, 0,          \
	  "cuGraphInstantiateWithFlags", CUgraphExec *, CUgraph,               \
	  unsigned long long)                                                  \
	X(graph_launch, "cuGraphLaunch", 10000, 0, "cuGraphLaunch",            \
	  CUgraphExec, CUstream)                                               \
	X(graph_exec_destroy, "cuGraphExecDestroy", 10000, 0,                  \
	  "cuGraphExecDestroy", CUgraphExec)                                   \
	X(graph_mem_trim, "cuDeviceGraphMemTrim", 11040, 0,                    \
	  "cuDeviceGraphMemTrim", CUdevice)

// wl_driver is the opened driver. A function that this driver lacks is NULL. WL_CALL of a NULL
// function returns CUDA_ERROR_NOT_FOUND.
struct wl_driver {
	void *library;
#define WL_DRIVER_MEMBER(member, name, version, flags, exported, ...) \
	CUresult (*member)(__VA_ARGS__);
	WL_DRIVER_FUNCTIONS(WL_DRIVER_MEMBER)
#undef WL_DRIVER_MEMBER
};

enum wl_lookup {
	WL_LOOKUP_GETPROC, // cuGetProcAddress_v2, as CUDA's runtime library
	WL_LOOKUP_DLSYM,   // dlsym of each exported name
};

// WL_CALL calls a driver function that may be absent.
#define WL_CALL(driver, member, ...)                            \
	((driver)->member ? (driver)->member(__VA_ARGS__)       \
			  : (CUresult)CUDA_ERROR_NOT_FOUND)

// wl_driver_open opens `path` and looks up every function. wl_driver_open returns 0, or -1 with the
// cause in `why` (of `why_size` bytes).
int wl_driver_open(struct wl_driver *driver, const char *path,
		   enum wl_lookup lookup, char *why, size_t why_size);

// wl_driver_forget_later drops the functions of a later CUDA version than the driver's version. For
// the names of these functions, cuGetProcAddress returns older functions with other arguments. The
// caller has initialised the driver.
void wl_driver_forget_later(struct wl_driver *driver);

// wl_driver_differences compares two drivers, which were opened from one library by different
// look-ups. wl_driver_differences calls `tell` for each function with different addresses, and
// returns the number of functions that both drivers have.
size_t wl_driver_differences(const struct wl_driver *one, const struct wl_driver *other,
			     void (*tell)(const char *name));

// wl_error_name returns the driver's name of a result ("CUDA_ERROR_…").
const char *wl_error_name(const struct wl_driver *driver, CUresult result);

// wl_uuid_text writes "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
void wl_uuid_text(const CUuuid *uuid, char text[41]);

#endif
