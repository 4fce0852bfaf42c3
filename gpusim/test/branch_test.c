// SPDX-License-Identifier: Apache-2.0
/* This test checks that each branch's library exports exactly the branch's names, and that calls of
 * later drivers work. */
#include "harness.h"

#include <dlfcn.h>
#include <string.h>

typedef CUresult look_up_fn(const char *, void **, int, cuuint64_t, int *);

static char directory[512];

static void *open_branch(const char *branch)
{
	char path[600];
	void *library;

	CHECK(snprintf(path, sizeof(path), "%s/drivers/%s/libcuda.so.1", directory, branch) > 0);
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	return library;
}

/* has reports whether a name exists. dlsym and cuGetProcAddress agree about the name. */
static int has(void *library, const char *exported, const char *base)
{
	look_up_fn *look_up = (look_up_fn *)dlsym(library, "cuGetProcAddress_v2");
	void *by_name = dlsym(library, exported);
	void *looked_up = NULL;
	int status = -1;

	CHECK(look_up);
	(void)look_up(base, &looked_up, 13040, 0, &status);
	if (by_name) {
		CHECK(looked_up == by_name && status == CU_GET_PROC_ADDRESS_SUCCESS);
		return 1;
	}
	if (looked_up) { /* an older version of the name */
		char older[64];

		CHECK(snprintf(older, sizeof(older), "%s_v2", base) > 0);
		CHECK(looked_up == dlsym(library, base) || looked_up == dlsym(library, older));
	}
	CHECK(looked_up || status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	return 0;
}

static void branches(void)
{
	static const struct {
		const char *branch;
		int names[6];
	} cases[] = {
		{"r535", {1, 0, 0, 0, 0, 0}},   {"r550", {1, 1, 0, 0, 0, 0}},
		{"r580", {1, 1, 1, 0, 0, 0}},   {"future", {1, 1, 1, 1, 1, 0}},
		{"unknown", {1, 1, 1, 1, 1, 1}},
	};
	static const char *const names[6][2] = {
		{"cuMemPrefetchAsync_v2", "cuMemPrefetchAsync"}, /* 12.2 */
		{"cuGreenCtxCreate", "cuGreenCtxCreate"},        /* 12.4 */
		{"cuMemGetMemPool", "cuMemGetMemPool"},          /* 13.0 */
		{"cuLaunchHostFunc_v2", "cuLaunchHostFunc"},     /* 13.2 */
		{"cuGraphAddNode_v3", "cuGraphAddNode"},         /* 13.4 */
		{"cuMemAllocFrob", "cuMemAllocFrob"},            /* no driver's */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		void *library = open_branch(cases[i].branch);

		for (size_t n = 0; n < 6; n++)
			CHECK(has(library, names[n][0], names[n][1]) == cases[i].names[n]);
	}
}

static void count(void *data)
{
	__atomic_add_fetch((int *)data, 1, __ATOMIC_SEQ_CST);
}

/* copy_3d is CUDA_MEMCPY3D_BATCH_OP of the driver's interface. */
struct copy_3d {
	struct {
		int type;
		CUdeviceptr address;
		size_t row, layer;
		int location[2];
	} from, to;
	size_t width, height, depth;
	int order;
	unsigned flags;
};

/*
 * TIMED returns the GPU's time for the work that a call queues in stream 0, in ms. The time of the
 * call itself does not count, because the work is behind a kernel.
 */
#define TIMED(call) \
	({ \
		float ms_ = 0; \
		OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL)); \
		OK(cuEventRecord(start, NULL)); \
		OK(call); \
		OK(cuEventRecord(end, NULL)); \
		OK(cuEventSynchronize(end)); \
		OK(cuEventElapsedTime(&ms_, start, end)); \
		ms_; \
	})

static void later_calls(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemsetD32_v2, CUdeviceptr, unsigned, size_t);
	DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t);
	DRIVER(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t, CUstream);
	DRIVER(cuMemcpyWithAttributesAsync, CUdeviceptr, CUdeviceptr, size_t, void *, CUstream);
	DRIVER(cuMemcpy3DWithAttributesAsync, struct copy_3d *, unsigned long long, CUstream);
	DRIVER(cuLaunchHostFunc_v2, CUstream, CUhostFn, void *, unsigned);
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	       unsigned, CUstream, void **, void **);
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	const size_t size = 16 * MIB;
	struct copy_3d copy = {.from.type = 1, .to.type = 1, .width = 1024, .height = 1024, .depth = 16};
	CUfunction spin = kernel("spin");
	uint64_t ns = 400 * MS;
	void *parameters[] = {&ns};
	unsigned got = 0;
	CUdeviceptr a, b;
	CUevent start, end;
	float plain;
	int calls = 0;

	OK(cuMemAlloc_v2(&a, size));
	OK(cuMemAlloc_v2(&b, size));
	OK(cuEventCreate(&start, 0));
	OK(cuEventCreate(&end, 0));
	OK(cuMemsetD32_v2(a, 7, size / 4));
	OK(cuMemcpyDtoDAsync_v2(b, a, size, NULL)); // the first copy makes the host allocate b's pages
	plain = TIMED(cuMemcpyDtoDAsync_v2(b, a, size, NULL));
	OK(cuMemsetD32_v2(a, 8, size / 4));
	BETWEEN(TIMED(cuMemcpyWithAttributesAsync(b, a, size, NULL, NULL)), plain * 0.8, plain * 1.3);
	OK(cuMemcpyDtoH_v2(&got, b + size - 4, 4));
	CHECK(got == 8);
	OK(cuMemsetD32_v2(a, 9, size / 4));
	copy.from.address = a;
	copy.to.address = b;
	BETWEEN(TIMED(cuMemcpy3DWithAttributesAsync(&copy, 0, NULL)), plain * 0.8, plain * 1.3);
	OK(cuMemcpyDtoH_v2(&got, b + size - 4, 4));
	CHECK(got == 9);
	CHECK(cuMemcpy3DWithAttributesAsync(&copy, 1, NULL) == CUDA_ERROR_INVALID_VALUE);
	OK(cuLaunchHostFunc_v2(NULL, count, &calls, 0));
	OK(cuStreamSynchronize(NULL));
	CHECK(calls == 1);
}

int main(void)
{
	char path[600];

	CHECK(snprintf(directory, sizeof(directory), "%s", getenv("GPUSIM_LIBCUDA")) > 0);
	*strrchr(directory, '/') = '\0';
	branches();
	CHECK(snprintf(path, sizeof(path), "%s/drivers/future/libcuda.so.1", directory) > 0);
	CHECK(setenv("GPUSIM_LIBCUDA", path, 1) == 0);
	begin();
	later_calls();
	return 0;
}
