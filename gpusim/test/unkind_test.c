// SPDX-License-Identifier: Apache-2.0
/* This test covers the restrictions of a profile beyond the default driver: see
 * unkind_test.conf. */
#include "harness.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONTEXT (512 * MIB)
#define CHUNK (2 * MIB)

static uint64_t mine(void)
{
	return physical(getpid(), 0);
}

static void small_pieces_share_chunks(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	CUdeviceptr pieces[64], large;

	for (int i = 0; i < 64; i++)
		OK(cuMemAlloc_v2(&pieces[i], MIB / 4));
	CHECK(mine() == CONTEXT + 8 * CHUNK);
	for (int i = 0; i < 64; i++)
		CHECK(pieces[i] / CHUNK == (pieces[i] + MIB / 4 - 1) / CHUNK);
	OK(cuMemAlloc_v2(&large, 3 * MIB));
	CHECK(large % CHUNK == 0 && mine() == CONTEXT + 8 * CHUNK + 4 * MIB);
	OK(cuMemFree_v2(large));
	CHECK(mine() == CONTEXT + 8 * CHUNK);
	for (int i = 0; i < 64; i++)
		OK(cuMemFree_v2(pieces[i]));
	CHECK(mine() == CONTEXT + 2 * CHUNK); /* kept for the next allocations */
	for (int i = 0; i < 16; i++)
		OK(cuMemAlloc_v2(&pieces[i], MIB / 4));
	CHECK(mine() == CONTEXT + 2 * CHUNK);
	for (int i = 0; i < 16; i++)
		OK(cuMemFree_v2(pieces[i]));
}

static void code_is_loaded_at_its_first_use(void)
{
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *);
	DRIVER(cuModuleUnload, CUmodule);
	uint64_t before = mine(), loaded;
	CUfunction function;
	CUmodule module;

	OK(cuModuleLoadData(&module, test_ptx));
	loaded = mine();
	CHECK(loaded >= before && loaded < before + strlen(test_ptx) + 1024);
	OK(cuModuleGetFunction(&function, module, "empty"));
	CHECK(mine() > loaded);
	OK(cuModuleUnload(module));
	CHECK(mine() == before);
}

static void a_raised_heap_is_taken_by_a_kernel(void)
{
	DRIVER(cuCtxSetLimit, unsigned, size_t);
	uint64_t before;

	spin(NULL, 1, 1); /* first loads its own code */
	before = mine();
	OK(cuCtxSetLimit(2, 72 * MIB));
	CHECK(mine() == before);
	spin(NULL, 1, 1);
	CHECK(mine() == before + 64 * MIB);
	OK(cuCtxSetLimit(2, 8 * MIB));
	CHECK(mine() == before + 64 * MIB);
	spin(NULL, 1, 1);
	CHECK(mine() == before);
}

static void a_first_use_waits_for_the_gpu(void)
{
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *);
	DRIVER(cuModuleUnload, CUmodule);
	CUfunction function;
	CUmodule module;
	uint64_t from;

	OK(cuModuleLoadData(&module, test_ptx));
	spin(NULL, 1, 1); /* first loads its own code */
	from = gs_now();
	spin(NULL, 200 * MS, 1);
	OK(cuModuleGetFunction(&function, module, "empty"));
	CHECK(gs_now() - from >= 199 * MS);
	OK(cuModuleUnload(module));
}

static void a_free_waits_for_the_gpu(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	CUdeviceptr memory;
	uint64_t from;

	OK(cuMemAlloc_v2(&memory, MIB));
	spin(NULL, 1, 1);
	from = gs_now();
	spin(NULL, 200 * MS, 1);
	OK(cuMemFree_v2(memory));
	CHECK(gs_now() - from >= 199 * MS);
}

/* a_compressed_image_costs_what_it_states loads a fat binary with one compressed part of machine
 * code. */
static void a_compressed_image_costs_what_it_states(void)
{
	DRIVER(cuLibraryLoadData, CUlibrary *, const void *, int *, void **, unsigned, int *, void **, unsigned);
	DRIVER(cuLibraryUnload, CUlibrary);
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	struct {
		uint32_t magic;
		uint16_t version, head;
		uint64_t size;
		uint16_t kind, unknown;
		uint32_t part_head;
		uint64_t part_size;
		uint32_t compressed, options;
		uint16_t minor, major;
		uint32_t arch, name, name_size;
		uint64_t flags, zero, uncompressed;
		char content[64];
	} image = {.magic = 0xba55ed50, .version = 1, .head = 16, .size = 128, .kind = 2, .part_head = 64,
		   .part_size = 64, .flags = 0x2000, .uncompressed = 8 * MIB};
	CUlibrary library;
	CUmodule module;

	OK(cuLibraryLoadData(&library, &image, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryUnload(library));
	OK(cuModuleLoadData(&module, &image));
	image.flags = 0x8000;
	OK(cuModuleLoadData(&module, &image));
	image.flags = 0;
	CHECK(cuModuleLoadData(&module, &image) == CUDA_ERROR_NO_BINARY_FOR_GPU);
}

/* ---- imports ---- */

struct sides {
	int socket[2];
	pid_t exporter;
};

static void export(void *argument)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuIpcGetMemHandle, CUipcMemHandle *, CUdeviceptr);
	const struct sides *sides = argument;
	CUipcMemHandle handle;
	CUdeviceptr address;
	char byte;

	begin();
	OK(cuMemAlloc_v2(&address, 64 * MIB));
	OK(cuIpcGetMemHandle(&handle, address));
	CHECK(write(sides->socket[0], &handle, sizeof(handle)) == sizeof(handle));
	CHECK(read(sides->socket[0], &byte, 1) == 1);
}

/* imports_outlive_their_exporter lets the child end while this process uses the child's memory.
 * From then on this process is charged with the memory. */
static void imports_outlive_their_exporter(struct sides *sides)
{
	DRIVER(cuIpcOpenMemHandle_v2, CUdeviceptr *, CUipcMemHandle, unsigned);
	DRIVER(cuIpcCloseMemHandle, CUdeviceptr);
	CUipcMemHandle handle;
	uint64_t before = mine();
	CUdeviceptr address;

	CHECK(read(sides->socket[1], &handle, sizeof(handle)) == sizeof(handle));
	OK(cuIpcOpenMemHandle_v2(&address, handle, 1));
	CHECK(mine() == before && used(0) == before + CONTEXT + 64 * MIB);
	CHECK(write(sides->socket[1], "", 1) == 1);
	finish(sides->exporter);
	gs_lock(observer());
	gs_reap(observer());
	gs_unlock(observer());
	CHECK(mine() == before + 64 * MIB && used(0) == mine());
	OK(cuIpcCloseMemHandle(address));
	CHECK(mine() == before && used(0) == before);
}

static void descriptors_keep_memory(void)
{
	DRIVER(cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
	       unsigned long long);
	DRIVER(cuMemExportToShareableHandle, void *, CUmemGenericAllocationHandle, int, unsigned long long);
	DRIVER(cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *, void *, int);
	DRIVER(cuMemRelease, CUmemGenericAllocationHandle);
	DRIVER(cuMemGetInfo_v2, size_t *, size_t *);
	const CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = 1,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle, imported;
	uint64_t before = mine();
	int fd, copy;

	OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
	OK(cuMemRelease(handle));
	CHECK(mine() == before + 64 * MIB);
	copy = dup(fd);
	close(fd);
	OK(cuMemGetInfo_v2(NULL, NULL));
	CHECK(mine() == before + 64 * MIB);
	OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)copy, 1));
	close(copy);
	OK(cuMemGetInfo_v2(NULL, NULL));
	CHECK(mine() == before + 64 * MIB); /* the import holds the memory */
	OK(cuMemRelease(imported));
	CHECK(mine() == before);
	OK(cuMemCreate(&handle, 64 * MIB, &prop, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
	OK(cuMemRelease(handle));
	close(fd);
	OK(cuMemGetInfo_v2(NULL, NULL));
	CHECK(mine() == before);
}

int main(void)
{
	struct sides sides;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sides.socket) == 0);
	sides.exporter = start(export, &sides);
	begin();
	imports_outlive_their_exporter(&sides);
	small_pieces_share_chunks();
	code_is_loaded_at_its_first_use();
	a_raised_heap_is_taken_by_a_kernel();
	a_first_use_waits_for_the_gpu();
	a_free_waits_for_the_gpu();
	a_compressed_image_costs_what_it_states();
	descriptors_keep_memory();
	return 0;
}
