// SPDX-License-Identifier: Apache-2.0
/*
 * This test covers the failures and costs that a profile sets for calls by name. The test covers
 * both libraries, and every way to reach a call. Arguments and results pass the entries unchanged.
 */
#include "harness.h"

#include "calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

/* ---- the entries alone (entries.inc), in front of the test's functions ---- */

const char *const gs_call_names[] = {"plain", "refused", "varied", "weighed"};
const size_t gs_call_count = 4;

int plain(int value);
int refused(int value);
int varied(int count, ...);
double weighed(int64_t i1, double d1, int64_t i2, double d2, int64_t i3, double d3, int64_t i4, double d4,
	       int64_t i5, double d5, int64_t i6, double d6, int64_t i7, double d7, int64_t i8, double d8,
	       int64_t i9, double d9, int64_t i10, double d10);

int sim_impl_plain(int value);
int sim_impl_refused(int value);
int sim_impl_varied(int count, ...);
double sim_impl_weighed(int64_t i1, double d1, int64_t i2, double d2, int64_t i3, double d3, int64_t i4,
			double d4, int64_t i5, double d5, int64_t i6, double d6, int64_t i7, double d7,
			int64_t i8, double d8, int64_t i9, double d9, int64_t i10, double d10);

int sim_impl_plain(int value)
{
	return value + 1;
}

static int reached; /* number of runs of the function behind `refused` */

int sim_impl_refused(int value)
{
	(void)__atomic_add_fetch(&reached, 1, __ATOMIC_RELAXED);
	return -value;
}

/* sim_impl_varied takes alternating integers and doubles. sim_impl_varied returns 1 if each
 * argument has the value of its place. */
int sim_impl_varied(int count, ...)
{
	va_list list;
	int right = 1;

	va_start(list, count);
	for (int i = 0; i < count; i++)
		right &= i % 2 ? va_arg(list, double) == i : va_arg(list, int64_t) == i;
	va_end(list);
	return right;
}

double sim_impl_weighed(int64_t i1, double d1, int64_t i2, double d2, int64_t i3, double d3, int64_t i4,
			double d4, int64_t i5, double d5, int64_t i6, double d6, int64_t i7, double d7,
			int64_t i8, double d8, int64_t i9, double d9, int64_t i10, double d10)
{
	/* The compiler assumes this alignment of a function's frame. */
	CHECK((uintptr_t)__builtin_frame_address(0) % 16 == 0);
	CHECK(i1 == 1 && i2 == 2 && i3 == 3 && i4 == 4 && i5 == 5);
	CHECK(i6 == 6 && i7 == 7 && i8 == 8 && i9 == 9 && i10 == INT64_MIN);
	CHECK(d1 == 0.5 && d2 == 1.5 && d3 == 2.5 && d4 == 3.5 && d5 == 4.5);
	CHECK(d6 == 5.5 && d7 == 6.5 && d8 == 7.5 && d9 == 8.5 && d10 == -0.25);
	return 2.75;
}

static void check_arguments(void)
{
	for (int round = 0; round < 3; round++) {
		CHECK(plain(41) == 42);
		CHECK(varied(14, (int64_t)0, 1.0, (int64_t)2, 3.0, (int64_t)4, 5.0, (int64_t)6, 7.0,
			     (int64_t)8, 9.0, (int64_t)10, 11.0, (int64_t)12, 13.0) == 1);
		CHECK(weighed(1, 0.5, 2, 1.5, 3, 2.5, 4, 3.5, 5, 4.5, 6, 5.5, 7, 6.5, 8, 7.5, 9, 8.5,
			      INT64_MIN, -0.25) == 2.75);
	}
}

static void unwatched(void *nothing)
{
	static const struct gs_driver driver;

	(void)nothing;
	CHECK(gs_calls_load(&driver, "plain") == 0);
	CHECK(!gs_calls_watched);
	check_arguments();
	CHECK(refused(7) == -7);
}

static const struct gs_driver watching = {
	.cost_count = 3,
	.costs = {{.call = "varied", .ns = 1000}, {.call = "weighed", .ns = 1000},
		  {.call = "cuOfAnotherLibrary", .ns = 1}},
	.failure_count = 3,
	.failures = {{.call = "refused", .result = 77, .after = 2, .count = 3},
		     {.call = "refused", .result = 88, .after = 4},
		     {.call = "nvmlOfAnotherLibrary", .result = 1}},
};

static void watched(void *nothing)
{
	static const int results[] = {-5, -5, 77, 77, 77, 88, 88};

	(void)nothing;
	CHECK(gs_calls_load(&watching, "") == 0);
	CHECK(gs_calls_watched);
	check_arguments();
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		CHECK(refused(5) == results[i]);
	CHECK(reached == 2); /* a call that fails has no effect */
}

/* first checks that the call that loads the profile is one of the calls that fail. */
static void first(void *nothing)
{
	static const struct gs_driver driver = {
		.failure_count = 1,
		.failures = {{.call = "refused", .result = 9, .count = 2}},
	};

	(void)nothing;
	CHECK(gs_calls_load(&driver, "refused") == 9);
	CHECK(gs_calls_load(&driver, "refused") == 0); /* already loaded: the entry counts */
	CHECK(refused(5) == 9);
	CHECK(refused(5) == -5);
}

static int refusals;

static void *call_often(void *nothing)
{
	(void)nothing;
	for (int i = 0; i < 1000; i++)
		if (refused(5) == 77)
			(void)__atomic_add_fetch(&refusals, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* threads checks that exactly the configured number of calls fails, in any thread. */
static void threads(void *nothing)
{
	static const struct gs_driver driver = {
		.failure_count = 1,
		.failures = {{.call = "refused", .result = 77, .after = 1500, .count = 321}},
	};
	pthread_t thread[4];

	(void)nothing;
	CHECK(gs_calls_load(&driver, "") == 0);
	for (size_t i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, call_often, NULL) == 0);
	for (size_t i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(refusals == 321 && reached == 4000 - 321);
}

/* ---- the libraries ---- */

static char work[] = "/tmp/gpusim-calls-XXXXXX";

/* use_profile makes a machine whose profile has these lines, and selects the machine for this
 * process. */
static void use_profile(const char *lines)
{
	char path[128], command[512];
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%d.conf", work, (int)getpid());
	file = fopen(path, "we");
	CHECK(file && fputs(lines, file) >= 0 && fclose(file) == 0);
	(void)snprintf(command, sizeof(command), "\"$GPUSIM_TOOL\" create --profile %s --gpus 1 %s/%d", path,
		       work, (int)getpid());
	CHECK(system(command) == 0);
	(void)snprintf(path, sizeof(path), "%s/%d/state", work, (int)getpid());
	CHECK(setenv("GPUSIM_STATE", path, 1) == 0);
}

static void failing(void *nothing)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	CUresult (*found)(CUdeviceptr *, size_t);
	CUdeviceptr pointer;

	(void)nothing;
	use_profile("fail = cuInit 100 count 1 # CUDA_ERROR_NO_DEVICE\n"
		    "fail = cuMemAlloc_v2 2 after 1 count 2\nfail = cuMemAlloc_v2 999 after 4\n");
	BETWEEN(cuInit(0), CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
	begin();
	OK(cuGetProcAddress_v2("cuMemAlloc", (void **)&found, 12000, 0, NULL));
	OK(cuMemAlloc_v2(&pointer, 1));
	CHECK(found(&pointer, 1) == CUDA_ERROR_OUT_OF_MEMORY); /* counted as dlsym's calls */
	CHECK(cuMemAlloc_v2(&pointer, 1) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(found(&pointer, 1));
	CHECK(found(&pointer, 1) == CUDA_ERROR_UNKNOWN);
	CHECK(cuMemAlloc_v2(&pointer, 1) == CUDA_ERROR_UNKNOWN);
}

/* least_ns returns the least time of several calls without relevant arguments. */
static uint64_t least_ns(CUresult (*call)(void *))
{
	void *result[4];
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 5; i++) {
		uint64_t began = gs_now(), took;

		OK(call(result));
		took = gs_now() - began;
		least = took < least ? took : least;
	}
	return least;
}

static void costing(void *nothing)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuCtxGetCurrent, void *);
	DRIVER(cuCtxGetDevice, void *);
	uint64_t began;

	(void)nothing;
	use_profile("cost = cuInit 1s\ncost = cuInit 30ms\ncost = cuCtxGetCurrent 2ms\n");
	began = gs_now();
	OK(cuInit(0));
	BETWEEN(gs_now() - began, 30 * MS, 500 * MS); /* the last of two costs counts */
	begin();
	BETWEEN(least_ns(cuCtxGetCurrent), 2 * MS, 4 * MS);
	BETWEEN(least_ns(cuCtxGetDevice), 0, 1 * MS);
}

static int nvml(const char *name, void *argument)
{
	static void *library;
	int (*call)(void *);

	if (!library)
		library = dlopen(getenv("GPUSIM_LIBNVML"), RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	call = (int (*)(void *))dlsym(library, name);
	CHECK(call);
	return call(argument);
}

static void of_nvml(void *nothing)
{
	unsigned count;
	uint64_t began;

	(void)nothing;
	use_profile("fail = nvmlInit_v2 9 count 2\nfail = nvmlDeviceGetCount_v2 999 after 1 count 1\n"
		    "cost = nvmlShutdown 10ms\nfail = cuInit 999\n");
	CHECK(nvml("nvmlInit_v2", NULL) == 9);
	CHECK(nvml("nvmlInit_v2", NULL) == 9);
	CHECK(nvml("nvmlInit_v2", NULL) == 0);
	CHECK(nvml("nvmlDeviceGetCount_v2", &count) == 0 && count == 1);
	CHECK(nvml("nvmlDeviceGetCount_v2", &count) == 999);
	CHECK(nvml("nvmlDeviceGetCount_v2", &count) == 0);
	began = gs_now();
	CHECK(nvml("nvmlShutdown", NULL) == 0);
	BETWEEN(gs_now() - began, 10 * MS, 100 * MS);
}

int main(void)
{
	static void (*const tests[])(void *) = {unwatched, watched, first, threads, failing, costing, of_nvml};
	char command[64];

	CHECK(mkdtemp(work));
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		finish(start(tests[i], NULL));
	(void)snprintf(command, sizeof(command), "rm -r %s", work);
	CHECK(system(command) == 0);
	return 0;
}
