// SPDX-License-Identifier: Apache-2.0

// trapped checks the interposer in a process whose kernel ends with an exception. Each later call
// returns the driver's error at once. The memory stays charged until the program ends the context:
// `trapped reset` resets a primary context, and `trapped destroy` destroys another context. Failed
// launches are not charged. entries_test.sh runs this program, with a limit of 30 %.

#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "metered.h"
#include "program.h"
#include "unkind.h"

enum { launch_failed = 719, tries = 200, kernel_ms = 20, retry_ms = 1000, slack_ms = 100 };

// A call in a broken context waits for no allowance and for no work.
static const uint64_t longest_call_ns = 500000000;

static const char trap_text[] =
	".version 7.0\n.target sm_50\n.address_size 64\n"
	".visible .entry trap(.param .u64 ns)\n{\n	.reg .u64 %t;\n"
	"	mov.u64 %t, %globaltimer;\n	trap;\n}\n";

static bool destroys; // the program destroys its context
static CUcontext made;
static CUfunction spin;
static uint64_t buffer;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

// charged returns the GPU time charged to the container, in ns.
static uint64_t charged(void)
{
	return __atomic_load_n(&usage()->header.devices[0].spent_ns, __ATOMIC_RELAXED);
}

static void begin_context(void)
{
	if (destroys)
		CHECK_EQUAL(CALL("cuCtxCreate_v2", (CUcontext *, unsigned, CUdevice), &made, 0, 0), 0);
	else
		use_primary_context();
}

static void end_context(void)
{
	if (destroys)
		CHECK_EQUAL(CALL("cuCtxDestroy_v2", (CUcontext), made), 0);
	else
		CHECK_EQUAL(CALL("cuDevicePrimaryCtxReset_v2", (CUdevice), 0), 0);
}

static CUfunction load(const char *image, const char *name)
{
	CUfunction function;
	void *module;

	CHECK_EQUAL(CALL("cuModuleLoadData", (void **, const void *), &module, image), 0);
	CHECK_EQUAL(CALL("cuModuleGetFunction", (CUfunction *, void *, const char *), &function, module, name), 0);
	return function;
}

static CUresult start(CUfunction function, unsigned blocks, uint64_t ns)
{
	void *parameters[] = {&ns};

	return CALL("cuLaunchKernel", LAUNCH, function, blocks, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

// break_context runs a kernel that ends with an exception, behind other work.
static void break_context(void)
{
	spin = load(text, "spin");
	CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &buffer, 64 * MIB), 0);
	for (int i = 0; i < 10; i++)
		CHECK_EQUAL(start(spin, 1, 1000000), 0);
	CHECK_EQUAL(start(load(trap_text, "trap"), 1, kernel_ms * UINT64_C(1000000)), 0);
	CHECK_EQUAL(CALL("cuCtxSynchronize", (void)), launch_failed);
}

static void fails(const char *what, uint64_t begin, CUresult result)
{
	if (result != launch_failed || now() - begin > longest_call_ns)
		fprintf(stderr, "%s returned %d after %.3f s\n", what, result, (double)(now() - begin) / 1e9);
	CHECK_EQUAL(result, launch_failed);
	CHECK(now() - begin <= longest_call_ns);
}

#define FAILS(name, types, ...) fails(name, now(), CALL(name, types, __VA_ARGS__))

static void test_calls(void)
{
	uint64_t address;

	for (int i = 0; i < tries; i++)
		fails("cuLaunchKernel", now(), start(spin, 1, 1000000));
	fails("cuCtxSynchronize", now(), CALL("cuCtxSynchronize", (void)));
	FAILS("cuStreamSynchronize", (CUstream), NULL);
	FAILS("cuStreamQuery", (CUstream), NULL);
	FAILS("cuMemAlloc_v2", ALLOC, &address, MIB);
	FAILS("cuMemFree_v2", (CUdeviceptr), buffer);
	FAILS("cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream), buffer, 0, MIB, NULL);
	FAILS("cuMemcpyDtoD_v2", (CUdeviceptr, CUdeviceptr, size_t), buffer, buffer + MIB, MIB);
}

// A program that retries its launches forever is not charged, so that it delays no other process of
// its container.
static void test_retries(void)
{
	const struct timespec pause = {.tv_nsec = 5000000};
	uint64_t end = now() + retry_ms * UINT64_C(1000000);

	// Half of the launches are of a kind without an estimate.
	for (unsigned blocks = 2; now() < end; blocks++) {
		CHECK_EQUAL(start(spin, blocks % 2 ? 1 : blocks, 1000000), launch_failed);
		nanosleep(&pause, NULL);
	}
}

// test_end checks that the container has its whole limit again after the context's end.
static void test_end(size_t whole)
{
	CHECK(held() > 64 * MIB);
	end_context();
	CHECK_EQUAL(held(), 0);
	begin_context();
	CHECK_EQUAL(left(), whole);
	spin = load(text, "spin");
	for (int i = 0; i < 10; i++)
		CHECK_EQUAL(start(spin, 1, 1000000), 0);
	CHECK_EQUAL(CALL("cuCtxSynchronize", (void)), 0);
}

// test_charge checks that the container is charged for the kernels, and not for the failed launches.
static void test_charge(uint64_t time)
{
	const uint64_t kernels = 20 * UINT64_C(1000000) + kernel_ms * UINT64_C(1000000);

	if (time < kernels || time > kernels + slack_ms * UINT64_C(1000000))
		fprintf(stderr, "%.3f ms were charged for kernels of %.3f ms\n", (double)time / 1e6, (double)kernels / 1e6);
	CHECK(time >= kernels && time <= kernels + slack_ms * UINT64_C(1000000));
}

int main(int argc, char **argv)
{
	size_t whole;
	uint64_t before;

	destroys = argc > 1 && strcmp(argv[1], "destroy") == 0;
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	begin_context();
	whole = left();
	before = charged();
	break_context();
	test_calls();
	test_retries();
	test_end(whole);
	test_charge(charged() - before);
	return 0;
}
