// SPDX-License-Identifier: Apache-2.0

// imports expects that memory which is imported is charged to its exporter alone:
// what is left of the container's limit does not change by an import. Run by
// doors_test.sh.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "driver.h"

#define MIB (UINT64_C(1) << 20)

struct properties {
	int type;
	int handle_types;
	int location_type;
	int location;
	void *unused;
	unsigned char flags[8];
};

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

typedef int (*init_fn)(unsigned flags);
typedef int (*retain_fn)(void **context, int device);
typedef int (*current_fn)(void *context);
typedef int (*info_fn)(size_t *available, size_t *total);
typedef int (*alloc_fn)(uint64_t *address, size_t bytes);
typedef int (*free_fn)(uint64_t address);
typedef int (*create_fn)(uint64_t *handle, size_t bytes, const struct properties *properties,
			 unsigned long long flags);
typedef int (*export_fn)(int *fd, uint64_t handle, int type, unsigned long long flags);
typedef int (*import_fn)(uint64_t *handle, void *fd, int type);
typedef int (*ipc_get_fn)(struct ipc_handle *handle, uint64_t address);
typedef int (*ipc_open_fn)(uint64_t *address, struct ipc_handle handle, unsigned flags);

typedef int (*external_fn)(void **memory, const struct external_handle *handle);
typedef int (*buffer_fn)(uint64_t *address, void *memory, const struct external_buffer *buffer);

enum { posix_fd = 1, opaque_fd = 1 };

static void start(void)
{
	void *context;

	CHECK_EQUAL(((init_fn)find("cuInit"))(0), 0);
	CHECK_EQUAL(((retain_fn)find("cuDevicePrimaryCtxRetain"))(&context, 0), 0);
	CHECK_EQUAL(((current_fn)find("cuCtxSetCurrent"))(context), 0);
}

static size_t left(void)
{
	size_t available = 0;

	CHECK_EQUAL(((info_fn)find("cuMemGetInfo_v2"))(&available, NULL), 0);
	return available;
}

static void test_shareable_handle(void)
{
	const struct properties properties = {.type = 1, .handle_types = posix_fd, .location_type = 1};
	free_fn release = (free_fn)find("cuMemRelease");
	size_t before = left();
	uint64_t exported;
	uint64_t imported;
	int fd;

	CHECK_EQUAL(((create_fn)find("cuMemCreate"))(&exported, 64 * MIB, &properties, 0), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(((export_fn)find("cuMemExportToShareableHandle"))(&fd, exported, posix_fd, 0), 0);
	CHECK_EQUAL(((import_fn)find("cuMemImportFromShareableHandle"))(&imported,
									(void *)(uintptr_t)fd, posix_fd), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(release(imported), 0);
	CHECK_EQUAL(release(exported), 0);
	CHECK_EQUAL(left(), before);
	close(fd);
}

// As memory of another API: it maps what exists, and its end frees nothing.
static void test_external_memory(void)
{
	const struct properties properties = {.type = 1, .handle_types = posix_fd, .location_type = 1};
	struct external_handle handle = {.type = opaque_fd, .size = 64 * MIB};
	const struct external_buffer buffer = {.size = 32 * MIB};
	size_t before = left();
	uint64_t exported;
	uint64_t address;
	void *memory;

	CHECK_EQUAL(((create_fn)find("cuMemCreate"))(&exported, 64 * MIB, &properties, 0), 0);
	CHECK_EQUAL(((export_fn)find("cuMemExportToShareableHandle"))(&handle.handle.fd, exported,
								      posix_fd, 0), 0);
	CHECK_EQUAL(((external_fn)find("cuImportExternalMemory"))(&memory, &handle), 0);
	CHECK_EQUAL(((buffer_fn)find("cuExternalMemoryGetMappedBuffer"))(&address, memory, &buffer), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(((free_fn)find("cuMemFree_v2"))(address), 0);
	CHECK_EQUAL(((current_fn)find("cuDestroyExternalMemory"))(memory), 0);
	CHECK_EQUAL(left(), before - 64 * MIB);
	CHECK_EQUAL(((free_fn)find("cuMemRelease"))(exported), 0);
	CHECK_EQUAL(left(), before);
}

// The importer is this process's child, which has not used CUDA before.
static int import(int handles)
{
	struct ipc_handle handle;
	uint64_t address;
	size_t before;

	CHECK(read(handles, &handle, sizeof handle) == (ssize_t)sizeof handle);
	start();
	before = left();
	CHECK_EQUAL(((ipc_open_fn)find("cuIpcOpenMemHandle_v2"))(&address, handle, 1), 0);
	CHECK_EQUAL(left(), before);
	CHECK_EQUAL(((free_fn)find("cuIpcCloseMemHandle"))(address), 0);
	CHECK_EQUAL(left(), before);
	return 0;
}

static void test_ipc(pid_t child, int handles)
{
	struct ipc_handle handle;
	uint64_t address;
	int status;

	CHECK_EQUAL(((alloc_fn)find("cuMemAlloc_v2"))(&address, 64 * MIB), 0);
	CHECK_EQUAL(((ipc_get_fn)find("cuIpcGetMemHandle"))(&handle, address), 0);
	CHECK(write(handles, &handle, sizeof handle) == (ssize_t)sizeof handle);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK_EQUAL(status, 0);
	CHECK_EQUAL(((free_fn)find("cuMemFree_v2"))(address), 0);
}

int main(void)
{
	int handles[2];
	pid_t child;

	CHECK(pipe(handles) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		return import(handles[0]);
	start();
	test_shareable_handle();
	test_external_memory();
	test_ipc(child, handles[1]);
	return 0;
}
