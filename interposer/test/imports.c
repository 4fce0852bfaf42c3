// SPDX-License-Identifier: Apache-2.0

// imports checks that imported memory is charged to the importer as long as the import exists, in
// addition to the exporter's charge. Exported memory must stay charged. entries_test.sh runs this
// program.

#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "descriptor.h"
#include "program.h"

struct ipc_handle {
	char bytes[64];
};

struct external_handle {
	int type;
	union {
		int fd;
		void *pair[2];
	} handle;
	unsigned long long size;
	unsigned flags;
	unsigned reserved[16];
};

struct external_buffer {
	unsigned long long offset;
	unsigned long long size;
	unsigned flags;
	unsigned reserved[16];
};

enum { opaque_fd = 1 };

static const CUmemAllocationProp properties = {
	.type = 1,
	.requestedHandleTypes = posix_fd,
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

#define CREATE (uint64_t *, size_t, const CUmemAllocationProp *, unsigned long long)
#define EXPORT (int *, uint64_t, int, unsigned long long)

static void start(void)
{
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
}

static void test_shareable_handle(void)
{
	size_t before = left();
	uint64_t exported;
	uint64_t imported;
	uint64_t address;
	int fd;

	CHECK_EQUAL(CALL("cuMemCreate", CREATE, &exported, 64 * MIB, &properties, 0), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(CALL("cuMemExportToShareableHandle", EXPORT, &fd, exported, posix_fd, 0), 0);
	CHECK_EQUAL(CALL("cuMemImportFromShareableHandle", (uint64_t *, void *, int), &imported,
			 (void *)(uintptr_t)fd, posix_fd), 0);
	CHECK_EQUAL(left(), before - 128 * MIB);
	CHECK_EQUAL(CALL("cuMemAddressReserve", (uint64_t *, size_t, size_t, uint64_t, unsigned long long),
			 &address, 64 * MIB, 0, 0, 0), 0);
	CHECK_EQUAL(CALL("cuMemMap", (uint64_t, size_t, size_t, uint64_t, unsigned long long), address,
			 64 * MIB, 0, imported, 0), 0);
	CHECK_EQUAL(left(), before - 128 * MIB);
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), imported), 0);
	CHECK_EQUAL(left(), before - 128 * MIB);
	CHECK_EQUAL(CALL("cuMemUnmap", (uint64_t, size_t), address, 64 * MIB), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), exported), 0);
	CHECK_EQUAL(left(), before - 64 * MIB); // the descriptor may hold the memory
	close(fd);
}

// test_external_memory checks that the import of external memory maps existing memory, and that the
// end of the import frees no memory.
static void test_external_memory(void)
{
	struct external_handle handle = {.type = opaque_fd, .size = 64 * MIB};
	const struct external_buffer buffer = {.size = 32 * MIB};
	size_t before = left();
	uint64_t exported;
	uint64_t address;
	void *memory;

	CHECK_EQUAL(CALL("cuMemCreate", CREATE, &exported, 64 * MIB, &properties, 0), 0);
	CHECK_EQUAL(CALL("cuMemExportToShareableHandle", EXPORT, &handle.handle.fd, exported, posix_fd, 0), 0);
	CHECK_EQUAL(CALL("cuImportExternalMemory", (void **, const struct external_handle *), &memory, &handle), 0);
	CHECK_EQUAL(CALL("cuExternalMemoryGetMappedBuffer",
			 (uint64_t *, void *, const struct external_buffer *), &address, memory, &buffer), 0);
	CHECK_EQUAL(left(), before - 128 * MIB);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
	CHECK_EQUAL(CALL("cuDestroyExternalMemory", (void *), memory), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), exported), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
}

static _Atomic int opened;

static void wait_until_opened(void *data)
{
	const struct timespec nap = {.tv_nsec = 1000000};

	(void)data;
	while (!atomic_load(&opened))
		nanosleep(&nap, NULL);
}

// Memory that a stream has yet to free is charged, even if its pool is destroyed first.
static void free_late(void *pool, uint64_t address)
{
	size_t before = left();
	void *stream;

	CHECK_EQUAL(CALL("cuStreamCreate", (void **, unsigned), &stream, 1), 0);
	CHECK_EQUAL(CALL("cuLaunchHostFunc", (void *, void (*)(void *), void *), stream, wait_until_opened, NULL), 0);
	CHECK_EQUAL(CALL("cuMemFreeAsync", (uint64_t, void *), address, stream), 0);
	CHECK_EQUAL(CALL("cuMemPoolDestroy", (void *), pool), 0);
	CHECK_EQUAL(left(), before);
	atomic_store(&opened, 1);
	CHECK_EQUAL(CALL("cuStreamSynchronize", (void *), stream), 0);
	CHECK_EQUAL(left(), before + 64 * MIB);
}

// Memory imported from a pool is charged until the pool ends, because the pool keeps the memory.
static void import_pool(int from)
{
	struct exported_piece piece;
	uint64_t address;
	size_t before;
	void *pool;

	CHECK(receive_pool(from, &pool, &piece));
	before = left();
	CHECK_EQUAL(import_piece(&address, pool, &piece), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(import_piece(&address, pool, &piece), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	free_late(pool, address);
	CHECK_EQUAL(left(), before);
}

// This process forks the importer before this process uses CUDA.
static int import(int handles)
{
	struct ipc_handle handle;
	uint64_t address;
	size_t before;

	CHECK(read(handles, &handle, sizeof handle) == (ssize_t)sizeof handle);
	start();
	before = left();
	CHECK_EQUAL(CALL("cuIpcOpenMemHandle_v2", (uint64_t *, struct ipc_handle, unsigned), &address, handle, 1), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(CALL("cuIpcCloseMemHandle", (uint64_t), address), 0);
	CHECK_EQUAL(left(), before);
	CHECK(write(handles, "", 1) == 1);
	import_pool(handles);
	return 0;
}

static void test_processes(pid_t child, int handles)
{
	struct ipc_handle handle;
	uint64_t address;
	char byte;
	int status;

	CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, 64 * MIB), 0);
	CHECK_EQUAL(CALL("cuIpcGetMemHandle", (struct ipc_handle *, uint64_t), &handle, address), 0);
	CHECK(write(handles, &handle, sizeof handle) == (ssize_t)sizeof handle);
	CHECK(read(handles, &byte, 1) == 1);
	CHECK(send_piece(handles, 64 * MIB));
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
}

int main(void)
{
	int handles[2];
	pid_t child;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, handles) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(handles[1]);
		return import(handles[0]);
	}
	close(handles[0]);
	start();
	test_shareable_handle();
	test_external_memory();
	test_processes(child, handles[1]);
	return 0;
}
