// SPDX-License-Identifier: Apache-2.0

// copies checks for every copy whether the limit on GPU time applies. Copies within a device are
// limited. Copies from and to the host or another device are not limited. entries_test.sh runs this
// program, with two GPUs. `copies load` copies for a second and a half.

#define _GNU_SOURCE
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "metered.h"
#include "program.h"

// For smaller copies, the simulator also moves the content, which takes time on the host.
enum { bytes = 4096, load_bytes = 1 << 30 };

static CUcontext contexts[2];
static CUdeviceptr first, second, elsewhere;
static CUarray array;
static char host[bytes];

static void start(void)
{
	const CUDA_ARRAY_DESCRIPTOR shape = {.Width = bytes, .Height = 4, .Format = 1, .NumChannels = 1};

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	for (int i = 1; i >= 0; i--) {
		CHECK_EQUAL(CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &contexts[i], i), 0);
		CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), contexts[i]), 0);
		if (i == 1)
			CHECK_EQUAL(CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &elsewhere, bytes), 0);
	}
	CHECK_EQUAL(CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &first, load_bytes), 0);
	CHECK_EQUAL(CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &second, load_bytes), 0);
	CHECK_EQUAL(CALL("cuArrayCreate_v2", (CUarray *, const CUDA_ARRAY_DESCRIPTOR *), &array, &shape), 0);
}

static void test_lines(void)
{
	METERED("cuMemcpyDtoD_v2", (CUdeviceptr, CUdeviceptr, size_t), first, second, bytes);
	METERED("cuMemcpyDtoD_v2_ptds", (CUdeviceptr, CUdeviceptr, size_t), first, second, bytes);
	METERED("cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream), first, second, bytes, NULL);
	METERED("cuMemcpy", (CUdeviceptr, CUdeviceptr, size_t), first, second, bytes);
	METERED("cuMemcpyAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream), first, second, bytes, NULL);
	FREE("cuMemcpy", (CUdeviceptr, CUdeviceptr, size_t), first, (CUdeviceptr)(uintptr_t)host, bytes);
	FREE("cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t), first, host, bytes);
	FREE("cuMemcpyHtoD_v2_ptds", (CUdeviceptr, const void *, size_t), first, host, bytes);
	FREE("cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t), host, first, bytes);
	FREE("cuMemcpyDtoH_v2_ptds", (void *, CUdeviceptr, size_t), host, first, bytes);
}

// An address of a device may be declared as an address of the host. The driver then copies within
// the device.
static void test_declared_as_host(void)
{
	void *far = (void *)(uintptr_t)second;
	CUDA_MEMCPY3D volume = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = far,
				.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = first,
				.WidthInBytes = 32, .Height = 2, .Depth = 1};

	METERED("cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t), first, far, bytes);
	METERED("cuMemcpyHtoD_v2_ptds", (CUdeviceptr, const void *, size_t), first, far, bytes);
	METERED("cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t), far, first, bytes);
	METERED("cuMemcpyDtoH_v2_ptds", (void *, CUdeviceptr, size_t), far, first, bytes);
	METERED("cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream), first, far, bytes, NULL);
	METERED("cuMemcpyHtoDAsync_v2_ptsz", (CUdeviceptr, const void *, size_t, CUstream), first, far, bytes, NULL);
	METERED("cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream), far, first, bytes, NULL);
	METERED("cuMemcpyDtoHAsync_v2_ptsz", (void *, CUdeviceptr, size_t, CUstream), far, first, bytes, NULL);
	METERED("cuMemcpyHtoA_v2", (CUarray, size_t, const void *, size_t), array, 0, far, 64);
	METERED("cuMemcpyHtoA_v2_ptds", (CUarray, size_t, const void *, size_t), array, 0, far, 64);
	METERED("cuMemcpyAtoH_v2", (void *, CUarray, size_t, size_t), far, array, 0, 64);
	METERED("cuMemcpyAtoH_v2_ptds", (void *, CUarray, size_t, size_t), far, array, 0, 64);
	METERED("cuMemcpyHtoAAsync_v2", (CUarray, size_t, const void *, size_t, CUstream), array, 0, far, 64, NULL);
	METERED("cuMemcpyHtoAAsync_v2_ptsz", (CUarray, size_t, const void *, size_t, CUstream), array, 0, far, 64, NULL);
	METERED("cuMemcpyAtoHAsync_v2", (void *, CUarray, size_t, size_t, CUstream), far, array, 0, 64, NULL);
	METERED("cuMemcpyAtoHAsync_v2_ptsz", (void *, CUarray, size_t, size_t, CUstream), far, array, 0, 64, NULL);
	METERED("cuMemcpy3DAsync_v2", (const CUDA_MEMCPY3D *, CUstream), &volume, NULL);
	METERED("cuMemcpy3D_v2", (const CUDA_MEMCPY3D *), &volume);
}

// Copies from and to the host are not metered.
static void test_host(void)
{
	FREE("cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream), first, host, bytes, NULL);
	FREE("cuMemcpyHtoDAsync_v2_ptsz", (CUdeviceptr, const void *, size_t, CUstream), first, host, bytes, NULL);
	FREE("cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream), host, first, bytes, NULL);
	FREE("cuMemcpyDtoHAsync_v2_ptsz", (void *, CUdeviceptr, size_t, CUstream), host, first, bytes, NULL);
	FREE("cuMemcpyHtoA_v2", (CUarray, size_t, const void *, size_t), array, 0, host, 64);
	FREE("cuMemcpyHtoA_v2_ptds", (CUarray, size_t, const void *, size_t), array, 0, host, 64);
	FREE("cuMemcpyAtoH_v2", (void *, CUarray, size_t, size_t), host, array, 0, 64);
	FREE("cuMemcpyAtoH_v2_ptds", (void *, CUarray, size_t, size_t), host, array, 0, 64);
	FREE("cuMemcpyHtoAAsync_v2", (CUarray, size_t, const void *, size_t, CUstream), array, 0, host, 64, NULL);
	FREE("cuMemcpyHtoAAsync_v2_ptsz", (CUarray, size_t, const void *, size_t, CUstream), array, 0, host, 64, NULL);
	FREE("cuMemcpyAtoHAsync_v2", (void *, CUarray, size_t, size_t, CUstream), host, array, 0, 64, NULL);
	FREE("cuMemcpyAtoHAsync_v2_ptsz", (void *, CUarray, size_t, size_t, CUstream), host, array, 0, 64, NULL);
}

static void test_planes(void)
{
	static const char *const calls[] = {"cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds", "cuMemcpy2DUnaligned_v2",
					    "cuMemcpy2DUnaligned_v2_ptds"};
	static const char *const streamed[] = {"cuMemcpy2DAsync_v2", "cuMemcpy2DAsync_v2_ptsz"};
	const CUDA_MEMCPY2D within = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = first,
				      .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = second,
				      .srcPitch = 64, .dstPitch = 64, .WidthInBytes = 32, .Height = 8};
	CUDA_MEMCPY2D outside = within;

	outside.dstDevice = (CUdeviceptr)(uintptr_t)host;
	for (size_t i = 0; i < 4; i++) {
		METERED(calls[i], (const CUDA_MEMCPY2D *), &within);
		FREE(calls[i], (const CUDA_MEMCPY2D *), &outside);
	}
	for (size_t i = 0; i < 2; i++) {
		METERED(streamed[i], (const CUDA_MEMCPY2D *, CUstream), &within, NULL);
		FREE(streamed[i], (const CUDA_MEMCPY2D *, CUstream), &outside, NULL);
	}
}

static void test_volumes(void)
{
	static const char *const calls[] = {"cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds", "cuMemcpy3DPeer",
					    "cuMemcpy3DPeer_ptds"};
	static const char *const streamed[] = {"cuMemcpy3DAsync_v2", "cuMemcpy3DAsync_v2_ptsz",
					       "cuMemcpy3DPeerAsync", "cuMemcpy3DPeerAsync_ptsz"};
	CUDA_MEMCPY3D_PEER within = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = first,
				     .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = array,
				     .WidthInBytes = 32, .Height = 2, .Depth = 1};
	CUDA_MEMCPY3D_PEER outside = within;

	outside.srcMemoryType = CU_MEMORYTYPE_HOST;
	outside.srcHost = host;
	for (size_t i = 0; i < 4; i++) {
		// In copies other than peer copies, the contexts are reserved fields.
		within.srcContext = within.dstContext = i < 2 ? NULL : contexts[0];
		METERED(calls[i], (const CUDA_MEMCPY3D_PEER *), &within);
		FREE(calls[i], (const CUDA_MEMCPY3D_PEER *), &outside);
		METERED(streamed[i], (const CUDA_MEMCPY3D_PEER *, CUstream), &within, NULL);
		FREE(streamed[i], (const CUDA_MEMCPY3D_PEER *, CUstream), &outside, NULL);
	}
	within.dstContext = contexts[1];
	FREE("cuMemcpy3DPeer", (const CUDA_MEMCPY3D_PEER *), &within);
	FREE("cuMemcpy3DPeerAsync", (const CUDA_MEMCPY3D_PEER *, CUstream), &within, NULL);
}

// Functions of CUDA 3.1 and earlier have addresses of 32 bits.
static void test_old(void)
{
	const CUDA_MEMCPY2D_v1 plane = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = 1,
					.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = 2,
					.WidthInBytes = 32, .Height = 8};
	const CUDA_MEMCPY3D_v1 volume = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = 1,
					 .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = 2,
					 .WidthInBytes = 32, .Height = 8, .Depth = 2};
	CUDA_MEMCPY2D_v1 upload = plane;

	upload.srcMemoryType = CU_MEMORYTYPE_HOST;
	METERED("cuMemcpy2D", (const CUDA_MEMCPY2D_v1 *), &plane);
	FREE("cuMemcpy2D", (const CUDA_MEMCPY2D_v1 *), &upload);
	METERED("cuMemcpy2DUnaligned", (const CUDA_MEMCPY2D_v1 *), &plane);
	METERED("cuMemcpy2DAsync", (const CUDA_MEMCPY2D_v1 *, CUstream), &plane, NULL);
	METERED("cuMemcpy3D", (const CUDA_MEMCPY3D_v1 *), &volume);
	METERED("cuMemcpy3DAsync", (const CUDA_MEMCPY3D_v1 *, CUstream), &volume, NULL);
	METERED("cuMemcpyAtoA", (CUarray, unsigned, CUarray, unsigned, unsigned), array, 0, array, 64, 64);
	METERED("cuMemcpyDtoA", (CUarray, unsigned, CUdeviceptr_v1, unsigned), array, 0, 1, 64);
	METERED("cuMemcpyAtoD", (CUdeviceptr_v1, CUarray, unsigned, unsigned), 1, array, 0, 64);
}

static void test_arrays(void)
{
	METERED("cuMemcpyAtoA_v2", (CUarray, size_t, CUarray, size_t, size_t), array, 0, array, 64, 64);
	METERED("cuMemcpyAtoA_v2_ptds", (CUarray, size_t, CUarray, size_t, size_t), array, 0, array, 64, 64);
	METERED("cuMemcpyDtoA_v2", (CUarray, size_t, CUdeviceptr, size_t), array, 0, first, 64);
	METERED("cuMemcpyDtoA_v2_ptds", (CUarray, size_t, CUdeviceptr, size_t), array, 0, first, 64);
	METERED("cuMemcpyAtoD_v2", (CUdeviceptr, CUarray, size_t, size_t), first, array, 0, 64);
	METERED("cuMemcpyAtoD_v2_ptds", (CUdeviceptr, CUarray, size_t, size_t), first, array, 0, 64);
}

#define PEER (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)
#define PEER_ASYNC (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)

static void test_peers(void)
{
	METERED("cuMemcpyPeer", PEER, first, contexts[0], second, contexts[0], bytes);
	METERED("cuMemcpyPeer_ptds", PEER, first, contexts[0], second, contexts[0], bytes);
	METERED("cuMemcpyPeerAsync", PEER_ASYNC, first, contexts[0], second, contexts[0], bytes, NULL);
	METERED("cuMemcpyPeerAsync_ptsz", PEER_ASYNC, first, contexts[0], second, contexts[0], bytes, NULL);
	FREE("cuMemcpyPeer", PEER, elsewhere, contexts[1], second, contexts[0], bytes);
	FREE("cuMemcpyPeerAsync", PEER_ASYNC, elsewhere, contexts[1], second, contexts[0], bytes, NULL);
}

#define BATCH_V1 \
	(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *, CUstream)
#define BATCH (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream)
#define VOLUMES_V1 (size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream)
#define VOLUMES (size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream)

// A batch is metered if any copy of the batch is within a device.
static void test_batches(void)
{
	static const char *const old[] = {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_ptsz"};
	static const char *const new[] = {"cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync_v2_ptsz"};
	CUdeviceptr here = (CUdeviceptr)(uintptr_t)host;
	CUdeviceptr to[] = {first, first}, from[] = {here, second}, outside[] = {here, here};
	size_t sizes[] = {64, bytes}, index = 0, failed;
	int order[4] = {1}; // CUmemcpyAttributes: the copies are in the stream's order

	for (size_t i = 0; i < 2; i++) {
		METERED(old[i], BATCH_V1, to, from, sizes, 2, order, &index, 1, &failed, NULL);
		FREE(old[i], BATCH_V1, to, outside, sizes, 2, order, &index, 1, &failed, NULL);
		METERED(new[i], BATCH, to, from, sizes, 2, order, &index, 1, NULL);
		FREE(new[i], BATCH, outside, from, sizes, 2, order, &index, 1, NULL);
	}
}

static void test_batches_of_volumes(void)
{
	static const char *const old[] = {"cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_ptsz"};
	static const char *const new[] = {"cuMemcpy3DBatchAsync_v2", "cuMemcpy3DBatchAsync_v2_ptsz"};
	CUDA_MEMCPY3D_BATCH_OP within = {
		.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = first},
		.dst = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array.array = array},
		.extent = {32, 2, 1}, .srcAccessOrder = 1,
	};
	CUDA_MEMCPY3D_BATCH_OP outside = within;
	size_t failed;

	outside.src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)host;
	for (size_t i = 0; i < 2; i++) {
		METERED(old[i], VOLUMES_V1, 1, &within, &failed, 0, NULL);
		FREE(old[i], VOLUMES_V1, 1, &outside, &failed, 0, NULL);
		METERED(new[i], VOLUMES, 1, &within, 0, NULL);
		FREE(new[i], VOLUMES, 1, &outside, 0, NULL);
	}
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// load copies planes of 1 GiB as fast as the limit allows, and prints the time in ns.
static void load(void)
{
	const CUDA_MEMCPY2D plane = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = first,
				     .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = second,
				     .srcPitch = 1 << 20, .dstPitch = 1 << 20,
				     .WidthInBytes = 1 << 20, .Height = 1 << 10};
	double began = seconds();

	while (seconds() - began < 1.5) {
		for (int i = 0; i < 10; i++)
			CHECK_EQUAL(CALL("cuMemcpy2DAsync_v2", (const CUDA_MEMCPY2D *, CUstream), &plane, NULL), 0);
		CHECK_EQUAL(CALL("cuCtxSynchronize", (void)), 0);
	}
	printf("{\"pid\":%d,\"wall_ns\":%.0f}\n", (int)getpid(), (seconds() - began) * 1e9);
}

int main(int argc, char **argv)
{
	start();
	if (argc > 1 && strcmp(argv[1], "load") == 0) {
		load();
		return 0;
	}
	test_lines();
	test_declared_as_host();
	test_host();
	test_planes();
	test_volumes();
	test_old();
	test_arrays();
	test_peers();
	test_batches();
	test_batches_of_volumes();
	return 0;
}
