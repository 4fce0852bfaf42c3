// SPDX-License-Identifier: Apache-2.0

// cancelled cancels a thread during the interposer's wait for a silent agent. The other threads
// continue. The agent answers after this program has written a line, and the measurement then
// corrects the charges of the other threads. With the argument "calls", threads are cancelled that
// are about to call a function without a cancellation point. unkind_test.sh runs this program.

#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "unkind.h"

enum { most_s = 5 };

// NVML calls a function of the management library, like CALL.
#define NVML(name, types, ...) (((int (*) types)find_nvml(name))(__VA_ARGS__))

static size_t refused_bytes;

static plain_fn find_nvml(const char *name)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	void *symbol = library ? dlsym(library, name) : NULL;
	plain_fn function;

	CHECK(symbol);
	memcpy(&function, &symbol, sizeof function);
	return function;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int alloc(size_t bytes)
{
	uint64_t address;

	return CALL("cuMemAlloc_v2", (uint64_t *, size_t), &address, bytes);
}

static void *ask(void *context)
{
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (void *), context), 0);
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	CHECK_EQUAL(alloc(refused_bytes), CUDA_ERROR_OUT_OF_MEMORY); // after a query to the agent
	pthread_testcancel();
	return NULL;
}

static void cancel_one(void *context)
{
	pthread_t thread;
	void *result;

	CHECK_EQUAL(pthread_create(&thread, NULL, ask, context), 0);
	CHECK_EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
}

// ---- calls of cancelled threads

static void *device; // of the management library
static void *spin;
static CUcontext current;
static pid_t forked;

static void query_nvml(void)
{
	unsigned long long memory[3];

	CHECK_EQUAL(NVML("nvmlDeviceGetMemoryInfo", (void *, unsigned long long *), device, memory), 0);
}

static void query_memory(void)
{
	CHECK(left() > 0);
}

static void launch_long(void)
{
	uint64_t ns = 20000000;
	void *parameters[] = {&ns};

	CHECK_EQUAL(CALL("cuLaunchKernel", LAUNCH, spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), 0);
}

static void fork_once(void)
{
	forked = fork();
	if (forked == 0)
		_exit(0);
}

struct call {
	void (*run)(void);
	bool returned;
};

static void *call_cancelled(void *argument)
{
	struct call *call = argument;

	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), current), 0);
	CHECK_EQUAL(pthread_cancel(pthread_self()), 0);
	call->run();
	call->returned = true;
	pthread_testcancel();
	return NULL;
}

static void check_returns(const char *name, void (*run)(void))
{
	struct call call = {.run = run};
	pthread_t thread;
	void *result;

	CHECK_EQUAL(pthread_create(&thread, NULL, call_cancelled, &call), 0);
	CHECK_EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	if (!call.returned)
		fprintf(stderr, "cancelled within: %s\n", name);
	CHECK(call.returned);
}

// dead_process starts a process that holds memory. Its parent kills the process after the parent has
// begun to use CUDA.
static pid_t dead_process(void)
{
	int ready[2];
	uint64_t address;
	pid_t child;

	CHECK_EQUAL(pipe(ready), 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(30); // the parent may fail
		CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
		use_gpu(0);
		CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &address, 64 * MIB), 0);
		CHECK_EQUAL(write(ready[1], "", 1), 1);
		for (;;)
			pause();
	}
	CHECK_EQUAL(read(ready[0], &address, 1), 1);
	return child;
}

static void test_calls(void)
{
	const struct timespec moment = {.tv_nsec = 200000000};
	pid_t child = dead_process();
	void *module;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_gpu(0);
	CHECK_EQUAL(CALL("cuCtxGetCurrent", (CUcontext *), &current), 0);
	CHECK_EQUAL(CALL("cuModuleLoadData", (void **, const void *), &module, text), 0);
	CHECK_EQUAL(CALL("cuModuleGetFunction", (void **, void *, const char *), &spin, module, "spin"), 0);
	CHECK_EQUAL(NVML("nvmlInit_v2", (void)), 0);
	CHECK_EQUAL(NVML("nvmlDeviceGetHandleByIndex_v2", (unsigned, void **), 0, &device), 0);
	check_returns("the first query of NVML", query_nvml);
	query_nvml();
	CHECK_EQUAL(kill(child, SIGKILL), 0);
	CHECK_EQUAL(waitpid(child, NULL, 0), child);
	nanosleep(&moment, NULL); // the interposer searches for dead processes from time to time
	check_returns("a query of free memory", query_memory);
	for (int i = 0; i < 4; i++)
		launch_long();
	check_returns("a launch", launch_long);
	check_returns("a fork", fork_once);
	CHECK_EQUAL(waitpid(forked, NULL, 0), forked);
}

int main(int argc, char **argv)
{
	const struct timespec silence = {.tv_sec = 2, .tv_nsec = 200000000};
	const struct timespec moment = {.tv_nsec = 100000000};
	void *context;
	double began;
	size_t before;

	if (argc > 1 && strcmp(argv[1], "calls") == 0) {
		test_calls();
		return 0;
	}
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
	CHECK_EQUAL(CALL("cuCtxGetCurrent", (void **), &context), 0);
	refused_bytes = left() + 64 * MIB;
	CHECK_EQUAL(alloc(refused_bytes), CUDA_ERROR_OUT_OF_MEMORY); // all log lines have been written
	nanosleep(&silence, NULL); // the longest backoff after a query without an answer
	cancel_one(context);
	began = now();
	CHECK_EQUAL(alloc(64 * MIB), 0);
	CHECK_EQUAL(alloc(refused_bytes), CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(now() - began < most_s);
	before = left();
	printf("cancelled\n");
	fflush(stdout);
	for (began = now(); left() <= before && now() - began < 2 * most_s;)
		nanosleep(&moment, NULL);
	CHECK(left() > before);
	return 0;
}
