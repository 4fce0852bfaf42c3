// SPDX-License-Identifier: Apache-2.0

// launches checks that the limit on GPU time applies to each function that launches a kernel, a
// graph or a memset. entries_test.sh runs this program. copies.c covers copies.

#define _GNU_SOURCE
#include <string.h>

#include "check.h"
#include "metered.h"
#include "program.h"
#include "unkind.h"

enum { many = 65, words = 64 };

static CUfunction function;
static CUdeviceptr memory;
static uint64_t kernel_ns = 1000;
static void *parameters[] = {&kernel_ns};

static void start(void)
{
	void *module;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	CHECK_EQUAL(CALL("cuModuleLoadData", (void **, const void *), &module, text), 0);
	CHECK_EQUAL(CALL("cuModuleGetFunction", (CUfunction *, void *, const char *), &function, module, "spin"), 0);
	CHECK_EQUAL(CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), &memory, MIB), 0);
}

static void test_kernels(void)
{
	static const char *const plain[] = {"cuLaunchKernel", "cuLaunchKernel_ptsz"};
	static const char *const cooperative[] = {"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz"};
	static const char *const extended[] = {"cuLaunchKernelEx", "cuLaunchKernelEx_ptsz"};
	const CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};

	for (int i = 0; i < 2; i++) {
		METERED(plain[i], LAUNCH, function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
		METERED(cooperative[i],
			(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **),
			function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters);
		METERED(extended[i], (const CUlaunchConfig *, CUfunction, void **, void **), &config, function, parameters, NULL);
	}
}

// The launches of CUDA 2 take the parameters and the shape of earlier calls.
static void test_old_kernels(void)
{
	CHECK_EQUAL(CALL("cuFuncSetBlockShape", (CUfunction, int, int, int), function, 1, 1, 1), 0);
	CHECK_EQUAL(CALL("cuParamSetv", (CUfunction, int, void *, unsigned), function, 0, &kernel_ns, sizeof kernel_ns), 0);
	CHECK_EQUAL(CALL("cuParamSetSize", (CUfunction, unsigned), function, sizeof kernel_ns), 0);
	METERED("cuLaunch", (CUfunction), function);
	METERED("cuLaunchGrid", (CUfunction, int, int), function, 1, 1);
	METERED("cuLaunchGridAsync", (CUfunction, int, int, CUstream), function, 1, 1, NULL);
}

#define MULTI_DEVICE (CUDA_LAUNCH_PARAMS *, unsigned, unsigned)

// A list with more launches than a machine has GPUs does not reach the driver.
static void test_list(void)
{
	static CUDA_LAUNCH_PARAMS list[many];
	uint64_t before;

	for (int i = 0; i < many; i++)
		list[i] = (CUDA_LAUNCH_PARAMS){function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters};
	METERED("cuLaunchCooperativeKernelMultiDevice", MULTI_DEVICE, list, 1, 0);
	before = launches();
	CHECK_EQUAL(CALL("cuLaunchCooperativeKernelMultiDevice", MULTI_DEVICE, list, many, 0), CUDA_ERROR_INVALID_VALUE);
	CHECK_EQUAL(launches(), before);
}

static void test_graphs(void)
{
	const CUDA_MEMSET_NODE_PARAMS fill = {.dst = memory, .elementSize = 1, .width = words, .height = 1};
	CUcontext context;
	void *graph, *exec, *node;

	CHECK_EQUAL(CALL("cuCtxGetCurrent", (CUcontext *), &context), 0);
	CHECK_EQUAL(CALL("cuGraphCreate", (void **, unsigned), &graph, 0), 0);
	CHECK_EQUAL(CALL("cuGraphAddMemsetNode", (void **, void *, void **, size_t, const void *, CUcontext), &node, graph,
			 NULL, 0, &fill, context), 0);
	CHECK_EQUAL(CALL("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec, graph, 0), 0);
	METERED("cuGraphLaunch", (void *, CUstream), exec, NULL);
	METERED("cuGraphLaunch_ptsz", (void *, CUstream), exec, NULL);
}

#define FILLS(bits, type)                                                                            \
	METERED("cuMemsetD" #bits, (unsigned, type, unsigned), MIB, 0, words);                         \
	METERED("cuMemsetD" #bits "_v2", (CUdeviceptr, type, size_t), memory, 0, words);             \
	METERED("cuMemsetD" #bits "_v2_ptds", (CUdeviceptr, type, size_t), memory, 0, words);        \
	METERED("cuMemsetD" #bits "Async", (CUdeviceptr, type, size_t, CUstream), memory, 0, words, NULL); \
	METERED("cuMemsetD" #bits "Async_ptsz", (CUdeviceptr, type, size_t, CUstream), memory, 0, words, NULL)

#define ROWS(bits, type)                                                                             \
	METERED("cuMemsetD2D" #bits, (unsigned, unsigned, type, unsigned, unsigned), MIB, words, 0, 1, 2); \
	METERED("cuMemsetD2D" #bits "_v2", (CUdeviceptr, size_t, type, size_t, size_t), memory, words, 0, 1, 2); \
	METERED("cuMemsetD2D" #bits "_v2_ptds", (CUdeviceptr, size_t, type, size_t, size_t), memory, words, 0, 1, 2); \
	METERED("cuMemsetD2D" #bits "Async", (CUdeviceptr, size_t, type, size_t, size_t, CUstream), memory, words, 0, 1, 2, NULL); \
	METERED("cuMemsetD2D" #bits "Async_ptsz", (CUdeviceptr, size_t, type, size_t, size_t, CUstream), memory, words, 0, 1, 2, NULL)

static void test_fills(void)
{
	FILLS(8, unsigned char);
	FILLS(16, unsigned short);
	FILLS(32, unsigned);
	ROWS(8, unsigned char);
	ROWS(16, unsigned short);
	ROWS(32, unsigned);
}

int main(void)
{
	start();
	test_kernels();
	test_old_kernels();
	test_list();
	test_graphs();
	test_fills();
	return 0;
}
