// SPDX-License-Identifier: Apache-2.0

// entries ENTRY [PATH] reaches the driver in one of the ways of a dynamic program, and checks that
// the limit applies. The limit has room for 448 MiB besides a context, but not for 128 MiB more.
// entries_test.sh runs this program.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define MIB (UINT64_C(1) << 20)

typedef int (*init_fn)(unsigned flags);
typedef int (*retain_fn)(void **context, int device);
typedef int (*current_fn)(void *context);
typedef int (*alloc_fn)(uint64_t *address, size_t bytes);
typedef int (*free_fn)(uint64_t address);
typedef int (*proc_fn)(const char *name, void **function, int version, uint64_t flags);
typedef int (*proc_v2_fn)(const char *name, void **function, int version, uint64_t flags, int *status);
typedef void (*plain_fn)(void);
typedef void *(*module_fn)(const char *name);

// plain_fn returns the function with a name, in the tested way.
typedef plain_fn (*find_fn)(const char *name);

static void *library;

static plain_fn as_function(void *symbol)
{
	plain_fn function;

	memcpy(&function, &symbol, sizeof function);
	return function;
}

static plain_fn by_handle(const char *name)
{
	return as_function(dlsym(library, name));
}

static plain_fn by_default(const char *name)
{
	return as_function(dlsym(RTLD_DEFAULT, name));
}

static plain_fn by_next(const char *name)
{
	return as_function(dlsym(RTLD_NEXT, name));
}

static plain_fn by_module(const char *name)
{
	return as_function(((module_fn)by_handle("module_find"))(name));
}

static void open_library(const char *name, int flags)
{
	library = dlopen(name, RTLD_NOW | flags);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
}

static void start(find_fn find)
{
	void *context;

	CHECK(find("cuInit"));
	CHECK_EQUAL(((init_fn)find("cuInit"))(0), 0);
	CHECK_EQUAL(((retain_fn)find("cuDevicePrimaryCtxRetain"))(&context, 0), 0);
	CHECK_EQUAL(((current_fn)find("cuCtxSetCurrent"))(context), 0);
}

static void expect_limit(alloc_fn alloc, free_fn give)
{
	uint64_t first = 0;
	uint64_t second = 0;

	CHECK_EQUAL(alloc(&first, 448 * MIB), 0);
	CHECK_EQUAL(alloc(&second, 128 * MIB), 2);
	CHECK_EQUAL(give(first), 0);
}

static int try_entry(find_fn find)
{
	start(find);
	expect_limit((alloc_fn)find("cuMemAlloc_v2"), (free_fn)find("cuMemFree_v2"));
	return 0;
}

static void *proc_v1(const char *name, int version, uint64_t flags)
{
	proc_fn get = (proc_fn)by_handle("cuGetProcAddress");
	void *function = NULL;

	CHECK_EQUAL(get(name, &function, version, flags), 0);
	return function;
}

static void *proc_v2(const char *name, int version, uint64_t flags)
{
	proc_v2_fn get = (proc_v2_fn)by_handle("cuGetProcAddress_v2");
	void *function = NULL;
	int status = -1;

	CHECK_EQUAL(get("cuGetProcAddress", &function, 12000, 0, &status), 0);
	get = (proc_v2_fn)as_function(function); // the result of the function itself
	CHECK_EQUAL(get(name, &function, version, flags, &status), 0);
	CHECK_EQUAL(status, 0);
	return function;
}

// cuGetProcAddress returns functions that report the limit, whatever version is requested.
static int try_proc(void *(*proc)(const char *name, int version, uint64_t flags))
{
	static const int versions[] = {3020, 11020, 11030, 12000, 13000};

	open_library("libcuda.so.1", 0);
	start(by_handle);
	for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
		for (uint64_t flags = 0; flags < 3; flags++)
			expect_limit((alloc_fn)as_function(proc("cuMemAlloc", versions[i], flags)),
				     (free_fn)as_function(proc("cuMemFree", versions[i], flags)));
	return 0;
}

static int in_child(int (*child)(void))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		_exit(child());
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static int as_program(void)
{
	open_library("libcuda.so.1", 0);
	return try_entry(by_handle);
}

// A driver does not survive a fork. The child must get no memory, and must not change the parent's
// memory.
static int after_fork(void)
{
	uint64_t address = 0;

	CHECK(((alloc_fn)by_handle("cuMemAlloc_v2"))(&address, MIB) != 0);
	CHECK(((init_fn)by_handle("cuInit"))(0) != 0);
	CHECK(((alloc_fn)by_handle("cuMemAlloc_v2"))(&address, MIB) != 0);
	return 0;
}

static int try_fork_after(void)
{
	uint64_t address;

	open_library("libcuda.so.1", 0);
	start(by_handle);
	CHECK_EQUAL(((alloc_fn)by_handle("cuMemAlloc_v2"))(&address, 256 * MIB), 0);
	CHECK_EQUAL(in_child(after_fork), 0);
	CHECK_EQUAL(((free_fn)by_handle("cuMemFree_v2"))(address), 0);
	expect_limit((alloc_fn)by_handle("cuMemAlloc_v2"), (free_fn)by_handle("cuMemFree_v2"));
	return 0;
}

static void open_namespace(const char *name)
{
	library = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
}

// The interposer cannot intercept the C library's own dlopen, and the dlopen of a module that
// searches the C library first.

static void *by_libc(const char *path)
{
	void *(*open_real)(const char *name, int flags);
	void *symbol = dlsym(dlopen("libc.so.6", RTLD_NOW), "dlopen");

	CHECK(symbol);
	memcpy(&open_real, &symbol, sizeof open_real);
	return open_real(path, RTLD_NOW);
}

static void *by_deepbind(const char *path)
{
	void *module = dlopen(getenv("ENTRY_MODULE"), RTLD_NOW | TEST_DEEPBIND);

	CHECK(module);
	return ((module_fn)as_function(dlsym(module, "module_open")))(path);
}

// late_agent_looks bounds the looks until an agent on a busy machine has measured memory.
static const int late_agent_looks = 30;

// The next allocations detect memory that was allocated without the interposer, and leave room for
// this memory.
static int try_behind(const char *path, void *(*open_real)(const char *path))
{
	const struct timespec until_next_look = {.tv_nsec = 300000000};
	uint64_t address;
	int looks = 0;
	void *real;

	open_library("libcuda.so.1", 0);
	start(by_handle);
	real = open_real(path);
	CHECK(real && real != library);
	CHECK_EQUAL(((alloc_fn)as_function(dlsym(real, "cuMemAlloc_v2")))(&address, 256 * MIB), 0);
	nanosleep(&until_next_look, NULL);
	CHECK_EQUAL(((alloc_fn)by_handle("cuMemAlloc_v2"))(&address, 192 * MIB), 0);
	while (((alloc_fn)by_handle("cuMemAlloc_v2"))(&address, 128 * MIB) != 2) {
		CHECK(looks++ < late_agent_looks);
		CHECK_EQUAL(((free_fn)by_handle("cuMemFree_v2"))(address), 0);
		nanosleep(&until_next_look, NULL);
	}
	return 0;
}

static int exec_program(void)
{
	execl("/proc/self/exe", "entries", "soname", (char *)NULL);
	return 1;
}

static int run(const char *entry, const char *path)
{
	if (strcmp(entry, "soname") == 0)
		return as_program();
	if (strcmp(entry, "plain") == 0)
		return open_library("libcuda.so", 0), try_entry(by_handle);
	if (strcmp(entry, "path") == 0)
		return open_library(path, 0), try_entry(by_handle);
	if (strcmp(entry, "deepbind") == 0)
		return open_library("libcuda.so.1", TEST_DEEPBIND), try_entry(by_handle);
	if (strcmp(entry, "module") == 0)
		return open_library(path, TEST_DEEPBIND), try_entry(by_module);
	if (strcmp(entry, "program") == 0)
		return open_library(NULL, 0), try_entry(by_handle);
	if (strcmp(entry, "default") == 0)
		return try_entry(by_default);
	if (strcmp(entry, "next") == 0)
		return try_entry(by_next);
	if (strcmp(entry, "proc") == 0)
		return try_proc(proc_v1);
	if (strcmp(entry, "proc-v2") == 0)
		return try_proc(proc_v2);
	if (strcmp(entry, "behind") == 0)
		return try_behind(path, by_libc);
	if (strcmp(entry, "behind-module") == 0)
		return try_behind(path, by_deepbind);
	if (strcmp(entry, "namespace") == 0)
		return open_namespace(path), try_entry(by_handle);
	if (strcmp(entry, "fork") == 0)
		return in_child(as_program);
	if (strcmp(entry, "fork-after") == 0)
		return try_fork_after();
	if (strcmp(entry, "fork-exec") == 0)
		return in_child(exec_program);
	fprintf(stderr, "no such entry: %s\n", entry);
	return 64;
}

int main(int argc, char **argv)
{
	CHECK(argc > 1);
	return run(argv[1], argc > 2 ? argv[2] : NULL);
}
