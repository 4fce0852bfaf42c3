// SPDX-License-Identifier: Apache-2.0

// This test covers the arguments that a stub passes on, and the library that a name opens. The
// interposer must be preloaded, and LD_LIBRARY_PATH must contain probe.c's library. Usage:
// stub_test INTERPOSER-DIR PROBE-DIR

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "probe.h"

// The sanitizers' libraries wrap dlopen, so that the loader treats these libraries as the caller.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_CALLER 0
#else
#define TEST_CALLER 1
#endif

typedef int (*start_fn)(long a, long b, long c, long d, long e, long f, double x0, double x1,
			double x2, double x3, double x4, double x5, double x6, double x7, long g, long h);
typedef int (*stop_fn)(struct probe_call *call);
typedef int (*plain_fn)(void);

static void *find(void *library, const char *name)
{
	void *symbol = dlsym(library, name);

	if (!symbol)
		fprintf(stderr, "no %s: %s\n", name, dlerror());
	CHECK(symbol);
	return symbol;
}

static void call_and_compare(start_fn start, stop_fn stop)
{
	struct probe_call call;

	CHECK_EQUAL(start(1, 2, 3, 4, 5, 6, .5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 7, 8), 42);
	CHECK_EQUAL(stop(&call), 0);
	for (int i = 0; i < 8; i++) {
		CHECK_EQUAL(call.integers[i], i + 1);
		CHECK_EQUAL(call.floats[i] * 2, 2 * i + 1);
	}
}

static void test_arguments(void *library)
{
	void *start_symbol = find(library, "cuProfilerStart");
	void *stop_symbol = find(library, "cuProfilerStop");
	start_fn start;
	stop_fn stop;

	memcpy(&start, &start_symbol, sizeof start);
	memcpy(&stop, &stop_symbol, sizeof stop);
	call_and_compare(start, stop); // resolves the function
	call_and_compare(start, stop); // jumps directly
}

static void test_function_that_the_driver_lacks(void *library)
{
	void *symbol = find(library, "cuProfilerInitialize");
	plain_fn initialize;

	memcpy(&initialize, &symbol, sizeof initialize);
	CHECK_EQUAL(initialize(), 801);
	CHECK_EQUAL(initialize(), 801);
}

static void *first_calls(void *library)
{
	test_function_that_the_driver_lacks(library);
	test_arguments(library);
	return NULL;
}

static void test_first_calls_at_once(void *library)
{
	pthread_t threads[16];

	for (int i = 0; i < 16; i++)
		CHECK(pthread_create(&threads[i], NULL, first_calls, library) == 0);
	for (int i = 0; i < 16; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static void expect_ours(void *library, const char *symbol, const char *ours)
{
	char real[PATH_MAX];
	Dl_info info;

	CHECK(dladdr(find(library, symbol), &info));
	CHECK(realpath(info.dli_fname, real));
	if (strcmp(real, ours) != 0)
		fprintf(stderr, "%s is from %s, not %s\n", symbol, real, ours);
	CHECK(strcmp(real, ours) == 0);
}

static void test_entries(const char *interposer, const char *probe)
{
	static const char *const names[] = {"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1",
					    "libnvidia-ml.so"};
	char cuda[PATH_MAX];
	char nvml[PATH_MAX];
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/libcuda.so.1", interposer);
	CHECK(realpath(path, cuda));
	snprintf(path, sizeof path, "%s/libnvidia-ml.so.1", interposer);
	CHECK(realpath(path, nvml));
	for (size_t i = 0; i < 4; i++)
		expect_ours(dlopen(names[i], RTLD_NOW | (i % 2 ? TEST_DEEPBIND : 0)),
			    i < 2 ? "cuInit" : "nvmlInit_v2", i < 2 ? cuda : nvml);
	snprintf(path, sizeof path, "%s/libcuda.so.1", probe);
	expect_ours(dlopen(path, RTLD_NOW), "cuInit", cuda);
	expect_ours(RTLD_DEFAULT, "cuInit", cuda);
}

// A library opens another library through $ORIGIN in its own RUNPATH. The loader must still
// identify the caller.
static void test_callers_runpath(const char *probe)
{
	char path[PATH_MAX];
	void *library;
	void *symbol;
	int (*outer)(void);

	CHECK(!dlopen("inner.so", RTLD_NOW)); // the library is not beside this program
	snprintf(path, sizeof path, "%s/outer.so", probe);
	library = dlopen(path, RTLD_NOW);
	CHECK(library);
	symbol = find(library, "outer");
	memcpy(&outer, &symbol, sizeof outer);
	CHECK_EQUAL(outer(), 7);
	CHECK(dlopen(NULL, RTLD_NOW));
}

// A new linker namespace contains neither the interposer nor its dlopen hook. A library in the new
// namespace finds the library in its own directory.
static void test_namespace(const char *probe)
{
	char path[PATH_MAX];
	void *library;
	void *symbol;
	int (*outer)(void);
	Lmid_t space = LM_ID_BASE;

	snprintf(path, sizeof path, "%s/outer.so", probe);
	library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
	CHECK(library);
	CHECK_EQUAL(dlinfo(library, RTLD_DI_LMID, &space), 0);
	CHECK(space != LM_ID_BASE);
	symbol = find(library, "outer");
	memcpy(&outer, &symbol, sizeof outer);
	CHECK_EQUAL(outer(), 7);
}

// RTLD_NEXT has the same result as without the interposer.
static void test_next(void)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

	CHECK(libc);
	CHECK(find(RTLD_NEXT, "getpid") == find(libc, "getpid"));
	CHECK(!dlsym(RTLD_NEXT, "no_such_name"));
	CHECK(dlerror());
	CHECK(!dlopen("no-such-library.so", RTLD_NOW));
	CHECK(strstr(dlerror(), "no-such-library.so"));
}

int main(int argc, char **argv)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	CHECK(argc == 3 && library);
	test_first_calls_at_once(library);
	test_arguments(library);
	test_entries(argv[1], argv[2]);
	if (!TEST_CALLER)
		return 0;
	test_callers_runpath(argv[2]);
	test_namespace(argv[2]);
	test_next();
	return 0;
}
