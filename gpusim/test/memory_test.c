// SPDX-License-Identifier: Apache-2.0
/* This test covers every way to allocate device memory. The test checks the memory that an
 * allocation takes, and that a free returns the memory. */
#include "harness.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONTEXT (512 * MIB)

static uint64_t mine(void)
{
	return physical(getpid(), 0);
}

static void linear(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned);
	DRIVER(cuMemAllocManaged, CUdeviceptr *, size_t, unsigned);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuMemGetInfo_v2, size_t *, size_t *);
	CUresult (*alloc_v1)(CUdeviceptr_v1 *, unsigned) =
		(CUresult(*)(CUdeviceptr_v1 *, unsigned))driver("cuMemAlloc");
	CUresult (*free_v1)(CUdeviceptr_v1) = (CUresult(*)(CUdeviceptr_v1))driver("cuMemFree");
	CUdeviceptr a, b, c;
	CUdeviceptr_v1 small;
	size_t pitch, available, total;

	OK(cuMemAlloc_v2(&a, 100 * MIB));
	CHECK(mine() == CONTEXT + 100 * MIB);
	OK(cuMemAlloc_v2(&b, 1));
	CHECK(mine() == CONTEXT + 100 * MIB + 512);
	OK(cuMemGetInfo_v2(&available, &total));
	CHECK(total == 4096 * MIB && available == total - mine());
	OK(cuMemGetInfo_v2(NULL, NULL));
	OK(cuMemFree_v2(a));
	OK(cuMemFree_v2(b));
	OK(cuMemFree_v2(0));
	CHECK(cuMemFree_v2(a) == CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAllocPitch_v2(&c, &pitch, 1000, 1024, 4));
	CHECK(pitch == 1024 && mine() == CONTEXT + MIB);
	OK(cuMemFree_v2(c));
	OK(cuMemAllocManaged(&c, 3 * MIB, 1));
	CHECK(mine() == CONTEXT + 3 * MIB);
	OK(cuMemFree_v2(c));
	OK(alloc_v1(&small, 5 * MIB));
	CHECK(mine() == CONTEXT + 5 * MIB);
	OK(free_v1(small));
	CHECK(mine() == CONTEXT);
}

/* a_free_does_not_wait tests a driver without free_waits. unkind_test.c tests a driver with
 * free_waits. */
static void a_free_does_not_wait(void *unused)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuCtxSynchronize, void);
	CUdeviceptr memory;
	uint64_t from;

	(void)unused;
	begin();
	OK(cuMemAlloc_v2(&memory, MIB));
	spin(NULL, 1, 1); /* loads the code */
	OK(cuCtxSynchronize());
	from = gs_now();
	spin(NULL, 500 * MS, 1);
	OK(cuMemFree_v2(memory));
	CHECK(gs_now() - from < 400 * MS);
	OK(cuCtxSynchronize());
	CHECK(gs_now() - from >= 499 * MS);
}

static void full_to_the_byte(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuMemGetInfo_v2, size_t *, size_t *);
	CUdeviceptr all, more;
	size_t available;

	OK(cuMemAlloc_v2(&all, 4096 * MIB - CONTEXT));
	CHECK(used(0) == 4096 * MIB);
	OK(cuMemGetInfo_v2(&available, NULL));
	CHECK(available == 0);
	CHECK(cuMemAlloc_v2(&more, 1) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemFree_v2(all));
	CHECK(cuMemAlloc_v2(&more, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuMemAlloc_v2(&more, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void content(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t);
	DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t);
	DRIVER(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t);
	DRIVER(cuMemsetD32_v2, CUdeviceptr, unsigned, size_t);
	static unsigned char out[4 * MIB], back[4 * MIB];
	CUdeviceptr a, b;

	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = (unsigned char)(i * 7 + i / 4096);
	OK(cuMemAlloc_v2(&a, sizeof(out)));
	OK(cuMemAlloc_v2(&b, sizeof(out)));
	OK(cuMemcpyHtoD_v2(a, out, sizeof(out)));
	OK(cuMemcpyDtoD_v2(b, a, sizeof(out)));
	OK(cuMemcpyDtoH_v2(back, b, sizeof(out)));
	CHECK(memcmp(out, back, sizeof(out)) == 0);
	OK(cuMemsetD32_v2(b + 4, 0x01020304, 2));
	OK(cuMemcpyDtoH_v2(back, b, 16));
	CHECK(back[3] == out[3] && back[4] == 4 && back[11] == 1 && back[12] == out[12]);
	OK(cuMemFree_v2(a));
	OK(cuMemFree_v2(b));
}

static void arrays(void)
{
	DRIVER(cuArrayCreate_v2, CUarray *, const CUDA_ARRAY_DESCRIPTOR *);
	DRIVER(cuArray3DCreate_v2, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
	DRIVER(cuMipmappedArrayCreate, CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned);
	DRIVER(cuArrayDestroy, CUarray);
	DRIVER(cuMipmappedArrayDestroy, CUmipmappedArray);
	DRIVER(cuArrayGetMemoryRequirements, CUDA_ARRAY_MEMORY_REQUIREMENTS *, CUarray, CUdevice);
	CUDA_ARRAY_DESCRIPTOR flat = {1024, 1024, 0x20, 4};
	CUDA_ARRAY3D_DESCRIPTOR deep = {128, 128, 64, 0x20, 1, 0};
	CUDA_ARRAY3D_DESCRIPTOR pyramid = {1024, 1024, 0, 0x20, 1, 0};
	CUDA_ARRAY_MEMORY_REQUIREMENTS needs;
	CUmipmappedArray levels;
	CUarray array;

	OK(cuArrayCreate_v2(&array, &flat));
	CHECK(mine() == CONTEXT + 16 * MIB);
	OK(cuArrayGetMemoryRequirements(&needs, array, 0));
	CHECK(needs.size == 16 * MIB);
	OK(cuArrayDestroy(array));
	OK(cuArray3DCreate_v2(&array, &deep));
	CHECK(mine() == CONTEXT + 4 * MIB);
	OK(cuArrayDestroy(array));
	OK(cuMipmappedArrayCreate(&levels, &pyramid, 3));
	CHECK(mine() == CONTEXT + 4 * MIB + MIB + MIB / 4);
	OK(cuMipmappedArrayDestroy(levels));
	CHECK(mine() == CONTEXT);
}

static void pools(void)
{
	DRIVER(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
	DRIVER(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuDeviceGetDefaultMemPool, CUmemoryPool *, CUdevice);
	DRIVER(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *);
	DRIVER(cuMemPoolDestroy, CUmemoryPool);
	DRIVER(cuMemPoolTrimTo, CUmemoryPool, size_t);
	DRIVER(cuMemPoolGetAttribute, CUmemoryPool, int, void *);
	DRIVER(cuMemPoolSetAttribute, CUmemoryPool, int, void *);
	CUmemPoolProps props = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	uint64_t value, keep = UINT64_MAX;
	CUmemoryPool pool, own;
	CUdeviceptr a;

	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&a, 10 * MIB, NULL));
	CHECK(mine() == CONTEXT + 10 * MIB);
	OK(cuMemFreeAsync(a, NULL));
	CHECK(mine() == CONTEXT + 10 * MIB); /* the reserve outlives the free */
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
	CHECK(value == 10 * MIB);
	OK(cuStreamSynchronize(NULL));
	CHECK(mine() == CONTEXT);
	OK(cuMemPoolCreate(&own, &props));
	OK(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	OK(cuMemAllocFromPoolAsync(&a, 3 * MIB, own, NULL));
	OK(cuMemFreeAsync(a, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK(mine() == CONTEXT + 4 * MIB);
	OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
	CHECK(value == 0);
	OK(cuMemPoolTrimTo(own, 0));
	CHECK(mine() == CONTEXT);
	CHECK(cuMemAllocFromPoolAsync(&a, 4000 * MIB, own, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemPoolDestroy(own));
}

static void virtual_memory(void)
{
	DRIVER(cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
	       unsigned long long);
	DRIVER(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	DRIVER(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
	DRIVER(cuMemUnmap, CUdeviceptr, size_t);
	DRIVER(cuMemRelease, CUmemGenericAllocationHandle);
	DRIVER(cuMemAddressFree, CUdeviceptr, size_t);
	CUmemAllocationProp prop = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAllocationProp host = {.type = 1, .location = {3, 0}};
	CUmemGenericAllocationHandle handle, elsewhere;
	CUdeviceptr range;

	OK(cuMemCreate(&handle, 6 * MIB, &prop, 0));
	CHECK(mine() == CONTEXT + 6 * MIB);
	OK(cuMemCreate(&elsewhere, 6 * MIB, &host, 0));
	CHECK(mine() == CONTEXT + 6 * MIB);
	OK(cuMemRelease(elsewhere));
	OK(cuMemAddressReserve(&range, 64 * MIB, 0, 0, 0));
	OK(cuMemMap(range, 6 * MIB, 0, handle, 0));
	CHECK(cuMemMap(range, 6 * MIB, 0, handle, 0) == CUDA_ERROR_ALREADY_MAPPED);
	OK(cuMemRelease(handle));
	CHECK(mine() == CONTEXT + 6 * MIB); /* still mapped */
	OK(cuMemUnmap(range, 6 * MIB));
	CHECK(mine() == CONTEXT);
	OK(cuMemAddressFree(range, 64 * MIB));
	CHECK(cuMemCreate(&handle, 6 * MIB + 1, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void contexts(void)
{
	DRIVER(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice);
	DRIVER(cuCtxCreate_v4, CUcontext *, void *, unsigned, CUdevice);
	DRIVER(cuCtxDestroy_v2, CUcontext);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuDeviceGetDevResource, CUdevice, CUdevResource *, int);
	DRIVER(cuDevResourceGenerateDesc, void **, CUdevResource *, unsigned);
	DRIVER(cuGreenCtxCreate, CUgreenCtx *, void *, CUdevice, unsigned);
	DRIVER(cuGreenCtxDestroy, CUgreenCtx);
	CUdevResource resource;
	CUcontext a, b;
	CUgreenCtx green;
	CUdeviceptr lost;
	void *description;

	OK(cuCtxCreate_v2(&a, 0, 0));
	OK(cuMemAlloc_v2(&lost, 7 * MIB));
	OK(cuCtxCreate_v4(&b, NULL, 0, 0));
	CHECK(mine() == 3 * CONTEXT + 7 * MIB);
	OK(cuCtxDestroy_v2(b));
	OK(cuCtxDestroy_v2(a));
	CHECK(mine() == CONTEXT);
	OK(cuDeviceGetDevResource(0, &resource, 1));
	OK(cuDevResourceGenerateDesc(&description, &resource, 1));
	OK(cuGreenCtxCreate(&green, description, 0, 1));
	CHECK(mine() == 2 * CONTEXT);
	OK(cuGreenCtxDestroy(green));
	free(description);
	CHECK(mine() == CONTEXT);
}

static void modules(void)
{
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	DRIVER(cuModuleUnload, CUmodule);
	DRIVER(cuModuleGetGlobal_v2, CUdeviceptr *, size_t *, CUmodule, const char *);
	CUdeviceptr scratch;
	CUmodule module;
	size_t size;

	OK(cuModuleLoadData(&module, test_ptx));
	BETWEEN(mine(), CONTEXT + 1024 + 512, CONTEXT + 64 * 1024);
	OK(cuModuleGetGlobal_v2(&scratch, &size, module, "scratch"));
	CHECK(size == 1024);
	OK(cuModuleUnload(module));
	CHECK(mine() == CONTEXT);
	CHECK(cuModuleLoadData(&module, "this is not PTX") == CUDA_ERROR_INVALID_PTX);
}

static void each_way(void *unused)
{
	(void)unused;
	begin();
	CHECK(mine() == CONTEXT);
	linear();
	full_to_the_byte();
	content();
	arrays();
	pools();
	virtual_memory();
	contexts();
	modules();
	CHECK(mine() == CONTEXT);
}

static void a_primary_context_takes_all_with_it(void *unused)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
	DRIVER(cuDevicePrimaryCtxReset_v2, CUdevice);
	CUdeviceptr a, b;

	(void)unused;
	begin();
	kernel("spin");
	OK(cuMemAlloc_v2(&a, 5 * MIB));
	OK(cuMemAllocAsync(&b, 5 * MIB, NULL));
	OK(cuDevicePrimaryCtxReset_v2(0));
	CHECK(mine() == 0);
}

/* ---- sharing ---- */

static void send_fd(int socket, const void *data, size_t size, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec io = {(void *)(uintptr_t)data, size};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *part = CMSG_FIRSTHDR(&message);

	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(part), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == (ssize_t)size);
}

static int receive_fd(int socket, void *data, size_t size)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec io = {data, size};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control)};
	int fd;

	CHECK(recvmsg(socket, &message, 0) == (ssize_t)size);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static int ends[2];

static void export_memory(void *unused)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuIpcGetMemHandle, CUipcMemHandle *, CUdeviceptr);
	DRIVER(cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
	       unsigned long long);
	DRIVER(cuMemExportToShareableHandle, void *, CUmemGenericAllocationHandle, int, unsigned long long);
	CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle memory;
	CUipcMemHandle handle;
	CUdeviceptr address;
	char done;
	int fd;

	(void)unused;
	begin();
	OK(cuMemAlloc_v2(&address, 20 * MIB));
	OK(cuIpcGetMemHandle(&handle, address));
	OK(cuMemCreate(&memory, 2 * MIB, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_fd(ends[0], &handle, sizeof(handle), fd);
	CHECK(read(ends[0], &done, 1) == 1);
	CHECK(physical(getpid(), 0) == CONTEXT + 22 * MIB);
}

static void imports_cost_nothing(void *unused)
{
	DRIVER(cuIpcOpenMemHandle_v2, CUdeviceptr *, CUipcMemHandle, unsigned);
	DRIVER(cuIpcCloseMemHandle, CUdeviceptr);
	DRIVER(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int);
	DRIVER(cuMemRelease, CUmemGenericAllocationHandle);
	CUmemGenericAllocationHandle memory;
	CUipcMemHandle handle = {""};
	CUdeviceptr address;
	pid_t exporter;
	int fd;

	(void)unused;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	exporter = start(export_memory, NULL);
	fd = receive_fd(ends[1], &handle, sizeof(handle));
	begin();
	OK(cuIpcOpenMemHandle_v2(&address, handle, 1));
	OK(cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK(mine() == CONTEXT);
	OK(cuIpcCloseMemHandle(address));
	OK(cuMemRelease(memory));
	CHECK(write(ends[1], "", 1) == 1);
	finish(exporter);
	CHECK(cuIpcOpenMemHandle_v2(&address, handle, 1) == CUDA_ERROR_INVALID_HANDLE);
}

static void export_pool(void *unused)
{
	DRIVER(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *);
	DRIVER(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	DRIVER(cuMemPoolExportToShareableHandle, void *, CUmemoryPool, int, unsigned long long);
	DRIVER(cuMemPoolExportPointer, CUmemPoolPtrExportData *, CUdeviceptr);
	const CUmemPoolProps props = {.allocType = 1, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemPoolPtrExportData piece;
	CUmemoryPool pool;
	CUdeviceptr address;
	char done;
	int fd;

	(void)unused;
	begin();
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&address, 5 * MIB, pool, NULL));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolExportPointer(&piece, address));
	send_fd(ends[0], &piece, sizeof(piece), fd);
	CHECK(read(ends[0], &done, 1) == 1);
	CHECK(physical(getpid(), 0) == CONTEXT + 6 * MIB);
}

/* imported_pieces_cost_nothing checks that imported allocations of pools cost no memory, and end
 * with their exporter. */
static void imported_pieces_cost_nothing(void *unused)
{
	DRIVER(cuMemPoolImportFromShareableHandle, CUmemoryPool *, void *, int, unsigned long long);
	DRIVER(cuMemPoolImportPointer, CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	CUmemPoolPtrExportData piece = {{0}};
	CUdeviceptr address, late;
	CUmemoryPool pool;
	pid_t exporter;
	int fd;

	(void)unused;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	exporter = start(export_pool, NULL);
	fd = receive_fd(ends[1], &piece, sizeof(piece));
	begin();
	OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolImportPointer(&address, pool, &piece));
	CHECK(mine() == CONTEXT);
	CHECK(write(ends[1], "", 1) == 1);
	finish(exporter);
	CHECK(used(0) == CONTEXT);
	CHECK(cuMemPoolImportPointer(&late, pool, &piece) == CUDA_ERROR_INVALID_HANDLE);
	OK(cuMemFree_v2(address));
	CHECK(mine() == CONTEXT);
}

/* raised_limits checks that a context's memory for kernels grows with the context's limits, and is
 * freed with the context. */
static void raised_limits(void *unused)
{
	DRIVER(cuDevicePrimaryCtxReset_v2, CUdevice);
	DRIVER(cuCtxSetLimit, unsigned, size_t);
	DRIVER(cuCtxGetLimit, size_t *, unsigned);
	DRIVER(cuDeviceGetAttribute, int *, int, CUdevice);
	int processors, threads;
	size_t value;

	(void)unused;
	begin();
	OK(cuCtxSetLimit(2, 8 * MIB));
	CHECK(mine() == CONTEXT);
	OK(cuCtxSetLimit(2, 108 * MIB));
	CHECK(mine() == CONTEXT + 100 * MIB);
	OK(cuCtxSetLimit(1, 11 * MIB));
	CHECK(mine() == CONTEXT + 110 * MIB);
	OK(cuCtxSetLimit(2, MIB));
	CHECK(mine() == CONTEXT + 10 * MIB);
	OK(cuDeviceGetAttribute(&processors, 16, 0));
	OK(cuDeviceGetAttribute(&threads, 39, 0));
	OK(cuCtxSetLimit(0, 2048));
	CHECK(mine() - CONTEXT - 10 * MIB >= (uint64_t)processors * (uint64_t)threads * 1024);
	CHECK(cuCtxSetLimit(0, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuCtxGetLimit(&value, 0));
	CHECK(value == 2048);
	OK(cuDevicePrimaryCtxReset_v2(0));
	CHECK(mine() <= CONTEXT);
}

int main(void)
{
	finish(start(each_way, NULL));
	finish(start(a_free_does_not_wait, NULL));
	finish(start(a_primary_context_takes_all_with_it, NULL));
	finish(start(raised_limits, NULL));
	finish(start(imports_cost_nothing, NULL));
	finish(start(imported_pieces_cost_nothing, NULL));
	CHECK(used(0) == 0);
	return 0;
}
