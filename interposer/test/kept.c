// SPDX-License-Identifier: Apache-2.0

// kept checks that memory stays charged while an array or a descriptor of a dma-buf keeps the memory.
// The same applies to memory whose free a stream captures.
// kept then allocates all remaining memory. entries_test.sh runs this program, and checks its
// physical memory. With the argument "measured", an agent detects that the memory is freed.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "program.h"
#include "vmm.h"

#define HANDLE (int *, uint64_t, size_t, int, unsigned long long)

enum { bytes = 128 << 20 };

// filled_array returns a sparse array with memory that only the array holds.
static CUarray filled_array(void)
{
	const CUDA_ARRAY3D_DESCRIPTOR shape = {
		.Width = 8192, .Height = 4096, .Format = 0x20, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SPARSE,
	};
	CUarrayMapInfo place = {
		.memOperationType = CU_MEM_OPERATION_TYPE_MAP, .deviceBitMask = 1,
		.subresource.sparseLevel = {.extentWidth = 8192, .extentHeight = 4096, .extentDepth = 1},
	};
	uint64_t handle = create(bytes);

	CHECK_EQUAL(CALL("cuArray3DCreate_v2", (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *), &place.resource.array,
			 &shape), 0);
	place.memHandle.memHandle = handle;
	CHECK_EQUAL(CALL("cuMemMapArrayAsync", (CUarrayMapInfo *, unsigned, CUstream), &place, 1, NULL), 0);
	release(handle);
	return place.resource.array;
}

static int descriptor(uint64_t address, size_t size)
{
	int fd;

	CHECK_EQUAL(CALL("cuMemGetHandleForAddressRange", HANDLE, &fd, address, size,
			 CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), 0);
	return fd;
}

// kept_linear returns a descriptor that alone holds memory of cuMemAlloc.
static int kept_linear(void)
{
	uint64_t address;
	int fd;

	CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, bytes), 0);
	fd = descriptor(address + bytes / 2, bytes / 2);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
	return fd;
}

// kept_mapping returns a descriptor that alone holds memory of cuMemCreate.
static int kept_mapping(void)
{
	uint64_t handle = create(bytes);
	uint64_t address = reserve(bytes);
	int fd;

	map(address, bytes, handle);
	release(handle);
	fd = descriptor(address, bytes);
	CHECK_EQUAL(CALL("cuMemUnmap", (uint64_t, size_t), address, bytes), 0);
	return fd;
}

// Memory without a descriptor is freed, also after the driver has refused a descriptor.
static void test_refused(void)
{
	size_t before = left();
	uint64_t address;
	int fd;

	CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, bytes), 0);
	CHECK(CALL("cuMemGetHandleForAddressRange", HANDLE, &fd, address, bytes, 99, 0) != 0);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
	CHECK_EQUAL(left(), before);
}

// A free that a stream captures frees no memory.
static void test_captured_free(void)
{
	size_t before = left();
	uint64_t address;
	CUstream stream;
	void *graph;

	CHECK_EQUAL(CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, bytes), 0);
	CHECK_EQUAL(CALL("cuStreamCreate", (CUstream *, unsigned), &stream, 1), 0);
	CHECK_EQUAL(CALL("cuStreamBeginCapture_v2", (CUstream, int), stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
	CHECK_EQUAL(CALL("cuMemFreeAsync", (uint64_t, CUstream), address, stream), 0);
	CHECK_EQUAL(CALL("cuStreamEndCapture", (CUstream, void **), stream, &graph), 0);
	CHECK_EQUAL(left(), before - bytes);
	CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), address), 0);
	CHECK_EQUAL(left(), before);
}

// wait_for waits until this much memory is left. wait_for allocates, so that the agent measures.
static void wait_for(size_t want)
{
	const struct timespec moment = {.tv_nsec = 300000000};

	for (int tries = 0; left() != want && tries < 20; tries++) {
		nanosleep(&moment, NULL);
		release(create(bytes));
	}
	CHECK_EQUAL(left(), want);
}

static void test_measured(void)
{
	size_t before = left();
	CUarray array = filled_array();
	int fd;

	CHECK_EQUAL(left(), before - bytes);
	CHECK_EQUAL(CALL("cuArrayDestroy", (CUarray), array), 0);
	wait_for(before);
	fd = kept_linear();
	CHECK_EQUAL(left(), before - bytes);
	close(fd);
	wait_for(before);
	fd = kept_mapping();
	CHECK_EQUAL(left(), before - bytes);
	close(fd);
	wait_for(before);
}

int main(int argc, char **argv)
{
	size_t granted = 3 * (size_t)bytes;
	uint64_t address;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	if (argc > 1 && strcmp(argv[1], "measured") == 0) {
		test_measured();
		return 0;
	}
	test_refused();
	test_captured_free();
	filled_array();
	kept_linear();
	kept_mapping();
	while (CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, 2 * MIB) == 0)
		granted += 2 * MIB;
	printf("{\"pid\":%d,\"granted_bytes\":%zu}\n", (int)getpid(), granted);
	return 0;
}
