// SPDX-License-Identifier: Apache-2.0
/* This test covers pools shared by processes: see poolshare_test.conf. */
#include "harness.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONTEXT (512 * MIB)
#define PIECE (64 * MIB)

struct sides {
	int socket[2];
	pid_t exporter;
};

/* pieces are the data that accompany the pool's descriptor. */
struct pieces {
	CUmemPoolPtrExportData first, second;
};

static uint64_t mine(void)
{
	return physical(getpid(), 0);
}

static void send_pool(int socket, const struct pieces *pieces, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec io = {(void *)(uintptr_t)pieces, sizeof(*pieces)};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control)};
	struct cmsghdr *part = CMSG_FIRSTHDR(&message);

	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(part), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == (ssize_t)sizeof(*pieces));
}

static int receive_pool(int socket, struct pieces *pieces)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec io = {pieces, sizeof(*pieces)};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof(control)};
	int fd;

	CHECK(recvmsg(socket, &message, 0) == (ssize_t)sizeof(*pieces));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static CUmemoryPool new_pool(int handle_types)
{
	DRIVER(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *);
	const CUmemPoolProps props = {.allocType = 1, .handleTypes = handle_types,
				      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool;

	OK(cuMemPoolCreate(&pool, &props));
	return pool;
}

static uint64_t attribute(CUmemoryPool pool, int which)
{
	DRIVER(cuMemPoolGetAttribute, CUmemoryPool, int, void *);
	uint64_t value;

	OK(cuMemPoolGetAttribute(pool, which, &value));
	return value;
}

/* export exports two allocations of a pool, keeps the allocations until the test requests the end,
 * and ends. */
static void export(void *argument)
{
	DRIVER(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	DRIVER(cuMemPoolExportToShareableHandle, void *, CUmemoryPool, int, unsigned long long);
	DRIVER(cuMemPoolExportPointer, CUmemPoolPtrExportData *, CUdeviceptr);
	const struct sides *sides = argument;
	CUdeviceptr first, second;
	struct pieces pieces;
	CUmemoryPool pool;
	char byte;
	int fd;

	begin();
	pool = new_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	OK(cuMemAllocFromPoolAsync(&first, PIECE, pool, NULL));
	OK(cuMemAllocFromPoolAsync(&second, PIECE / 2, pool, NULL));
	CHECK(cuMemPoolExportPointer(&pieces.first, first) == CUDA_ERROR_INVALID_VALUE); /* not shared yet */
	OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemPoolExportPointer(&pieces.first, first));
	OK(cuMemPoolExportPointer(&pieces.second, second));
	send_pool(sides->socket[0], &pieces, fd);
	CHECK(read(sides->socket[0], &byte, 1) == 1);
}

static void only_such_pools_are_exported(void)
{
	DRIVER(cuMemPoolCreate, CUmemoryPool *, const CUmemPoolProps *);
	DRIVER(cuMemPoolDestroy, CUmemoryPool);
	DRIVER(cuMemPoolExportToShareableHandle, void *, CUmemoryPool, int, unsigned long long);
	const CUmemPoolProps fabric = {.allocType = 1, .handleTypes = 8,
				       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemoryPool pool = new_pool(0);
	int fd;

	CHECK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_ERROR_INVALID_VALUE);
	OK(cuMemPoolDestroy(pool));
	CHECK(cuMemPoolCreate(&pool, &fabric) == CUDA_ERROR_NOT_SUPPORTED);
}

static void an_exportable_pool_keeps_its_memory(void)
{
	DRIVER(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	DRIVER(cuMemPoolTrimTo, CUmemoryPool, size_t);
	DRIVER(cuMemPoolDestroy, CUmemoryPool);
	DRIVER(cuStreamSynchronize, CUstream);
	CUmemoryPool pool = new_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	uint64_t before = mine();
	CUdeviceptr address;

	OK(cuMemAllocFromPoolAsync(&address, PIECE, pool, NULL));
	CHECK(mine() == before + PIECE);
	OK(cuMemFreeAsync(address, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemPoolTrimTo(pool, 0));
	CHECK(mine() == before + PIECE && attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == PIECE);
	OK(cuMemAllocFromPoolAsync(&address, PIECE, pool, NULL));
	CHECK(mine() == before + PIECE);
	OK(cuMemFreeAsync(address, NULL));
	OK(cuMemPoolDestroy(pool));
	CHECK(mine() == before);
}

static void an_imported_pool_allocates_nothing(CUmemoryPool pool)
{
	DRIVER(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	DRIVER(cuDeviceSetMemPool, CUdevice, CUmemoryPool);
	DRIVER(cuMemPoolExportToShareableHandle, void *, CUmemoryPool, int, unsigned long long);
	CUdeviceptr address;
	int fd;

	CHECK(cuMemAllocFromPoolAsync(&address, MIB, pool, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuDeviceSetMemPool(0, pool) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void pieces_belong_to_their_pool(CUmemoryPool pool, const struct pieces *pieces, int fd)
{
	DRIVER(cuMemPoolImportPointer, CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *);
	DRIVER(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int);
	DRIVER(cuMemPoolDestroy, CUmemoryPool);
	CUmemoryPool other = new_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUmemPoolPtrExportData wrong = {{0}}, first = pieces->first;
	CUmemGenericAllocationHandle memory;
	CUdeviceptr address;

	CHECK(cuMemPoolImportPointer(&address, other, &first) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPoolImportPointer(&address, pool, &wrong) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemPoolDestroy(other));
}

static void check_piece(CUdeviceptr address, CUmemoryPool pool, uint64_t size)
{
	DRIVER(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr);
	DRIVER(cuPointerGetAttribute, void *, int, CUdeviceptr);
	CUmemoryPool of;
	CUdeviceptr base;
	size_t length;

	OK(cuMemGetAddressRange_v2(&base, &length, address));
	CHECK(base == address && length == size);
	OK(cuPointerGetAttribute(&length, 12, address));
	OK(cuPointerGetAttribute(&of, 17, address));
	CHECK(length == size && of == pool);
}

/* imports_outlive_their_exporter lets the child end while this process uses the child's memory.
 * This process is charged with the memory until the pool ends. */
static void imports_outlive_their_exporter(struct sides *sides)
{
	DRIVER(cuMemPoolImportFromShareableHandle, CUmemoryPool *, void *, int, unsigned long long);
	DRIVER(cuMemPoolImportPointer, CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *);
	DRIVER(cuMemPoolDestroy, CUmemoryPool);
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	uint64_t before = mine();
	CUdeviceptr first, again, second;
	struct pieces pieces = {{{0}}, {{0}}};
	CUmemoryPool pool;
	int fd = receive_pool(sides->socket[1], &pieces);

	OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	an_imported_pool_allocates_nothing(pool);
	pieces_belong_to_their_pool(pool, &pieces, fd);
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
	OK(cuMemPoolImportPointer(&first, pool, &pieces.first));
	check_piece(first, pool, PIECE);
	OK(cuMemFreeAsync(first, NULL));
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0 && attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == PIECE);
	OK(cuMemPoolImportPointer(&again, pool, &pieces.first));
	OK(cuMemPoolImportPointer(&second, pool, &pieces.second));
	CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == PIECE + PIECE / 2);
	CHECK(mine() == before && used(0) == before + CONTEXT + PIECE + PIECE / 2);
	CHECK(write(sides->socket[1], "", 1) == 1);
	finish(sides->exporter);
	gs_lock(observer());
	gs_reap(observer());
	gs_unlock(observer());
	CHECK(mine() == before + PIECE + PIECE / 2 && used(0) == mine());
	OK(cuMemFree_v2(again));
	CHECK(mine() == before + PIECE + PIECE / 2); /* the pool keeps the memory */
	OK(cuMemPoolDestroy(pool));
	CHECK(mine() == before + PIECE + PIECE / 2); /* the pool ends with its last allocation */
	OK(cuMemFreeAsync(second, NULL));
	CHECK(mine() == before && used(0) == before);
	close(fd);
}

int main(void)
{
	struct sides sides;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sides.socket) == 0);
	sides.exporter = start(export, &sides);
	begin();
	imports_outlive_their_exporter(&sides);
	only_such_pools_are_exported();
	an_exportable_pool_keeps_its_memory();
	return 0;
}
