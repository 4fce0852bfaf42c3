// SPDX-License-Identifier: Apache-2.0
/* This test covers many threads in one process, for ThreadSanitizer. */
#include "harness.h"

#include <pthread.h>
#include <unistd.h>

#define THREADS 6
#define ROUNDS 60

static CUcontext context;
static unsigned host_calls;

static void count_call(void *unused)
{
	(void)unused;
	__atomic_add_fetch(&host_calls, 1, __ATOMIC_RELAXED);
}

static void one_round(CUstream stream, CUevent from, CUevent to, CUfunction function)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	DRIVER(cuLaunchKernel_ptsz, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
	       unsigned, unsigned, CUstream, void **, void **);
	DRIVER(cuLaunchHostFunc, CUstream, CUhostFn, void *);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	DRIVER(cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream);
	uint64_t ns = 100000;
	void *params[] = {&ns};
	CUdeviceptr a, b;
	float ms;

	OK(cuMemAlloc_v2(&a, MIB));
	OK(cuMemAllocAsync(&b, MIB, stream));
	OK(cuEventRecord(from, stream));
	OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
	OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	OK(cuEventRecord(to, stream));
	OK(cuMemsetD8Async(b, 1, 4096, stream));
	OK(cuLaunchHostFunc(stream, count_call, NULL));
	OK(cuMemFreeAsync(b, stream));
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&ms, from, to));
	CHECK(ms >= 0.1f);
	OK(cuMemFree_v2(a));
}

static void *work(void *function)
{
	DRIVER(cuCtxSetCurrent, CUcontext);
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamDestroy_v2, CUstream);
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventDestroy_v2, CUevent);
	CUstream stream;
	CUevent from, to;

	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < ROUNDS; i++) {
		OK(cuEventCreate(&from, 0));
		OK(cuEventCreate(&to, 0));
		one_round(stream, from, to, function);
		OK(cuEventDestroy_v2(from));
		OK(cuEventDestroy_v2(to));
	}
	OK(cuStreamSynchronize(stream));
	OK(cuStreamDestroy_v2(stream));
	return NULL;
}

static void storm(void *unused)
{
	DRIVER(cuCtxGetCurrent, CUcontext *);
	DRIVER(cuDevicePrimaryCtxRelease_v2, CUdevice);
	pthread_t threads[THREADS];
	CUfunction function;

	(void)unused;
	begin();
	function = kernel("spin");
	OK(cuCtxGetCurrent(&context));
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, function) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(host_calls == THREADS * ROUNDS);
	CHECK(gpu_time(getpid(), 0) > 0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	CHECK(physical(getpid(), 0) == 0);
}

int main(void)
{
	finish(start(storm, NULL));
	return 0;
}
