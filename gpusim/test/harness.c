// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const char test_ptx[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .global .align 4 .b8 scratch[1024];\n"
	"// spins until the timer has moved on by ns\n"
	".visible .entry spin(.param .u64 spin_ns)\n"
	"{\n"
	"  .reg .u64 %t<4>;\n"
	"  .reg .pred %p;\n"
	"  ld.param.u64 %t0, [spin_ns];\n"
	"  mov.u64 %t1, %globaltimer;\n"
	"  add.u64 %t1, %t1, %t0;\n"
	"again:\n"
	"  mov.u64 %t2, %globaltimer;\n"
	"  setp.lt.u64 %p, %t2, %t1;\n"
	"  @%p bra again;\n"
	"  ret;\n"
	"}\n"
	"// spins and ends with an exception\n"
	".visible .entry trap(.param .u64 spin_ns)\n"
	"{\n"
	"  .reg .u64 %t;\n"
	"  mov.u64 %t, %globaltimer; // and so on\n"
	"  trap;\n"
	"}\n"
	".visible .entry meet(.param .u64 ns, .param .u64 mine, .param .u64 theirs, .param .u64 turn)\n"
	"{\n"
	"  .reg .u64 %t;\n"
	"  mov.u64 %t, %globaltimer; // and so on\n"
	"  ret;\n"
	"}\n"
	".visible .entry empty() { ret; }\n"
	".visible .entry mixed(.param .u32 a, .param .u64 b, .param .align 8 .b8 c[16]) { ret; }\n";

void *driver(const char *name)
{
	static void *library;
	void *symbol;

	if (!library) {
		const char *path = getenv("GPUSIM_LIBCUDA");

		library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			exit(1);
		}
	}
	symbol = dlsym(library, name);
	if (!symbol) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return symbol;
}

void begin(void)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
	DRIVER(cuCtxSetCurrent, CUcontext);
	CUcontext context;

	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuCtxSetCurrent(context));
}

CUfunction kernel(const char *name)
{
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *);
	static CUmodule module;
	CUfunction function;

	if (!module)
		OK(cuModuleLoadData(&module, test_ptx));
	OK(cuModuleGetFunction(&function, module, name));
	return function;
}

CUresult launch_for(CUfunction function, CUstream stream, uint64_t ns, unsigned blocks)
{
	DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	       unsigned, CUstream, void **, void **);
	void *params[] = {&ns};

	return cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

void spin(CUstream stream, uint64_t ns, unsigned blocks)
{
	static CUfunction function;

	if (!function)
		function = kernel("spin");
	OK(launch_for(function, stream, ns, blocks));
}

pid_t start(void (*run)(void *), void *argument)
{
	pid_t parent = getpid(), pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		/* A test that fails must leave no process that keeps a GPU and a processor busy. */
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		CHECK(getppid() == parent);
		run(argument);
		exit(0);
	}
	return pid;
}

void finish(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == OUT_OF_BOUNDS)
		exit(OUT_OF_BOUNDS);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void kill_hard(pid_t pid)
{
	int status;

	CHECK(kill(pid, SIGKILL) == 0);
	CHECK(waitpid(pid, &status, 0) == pid);
}

struct gs_handle *observer(void)
{
	static struct gs_handle handle;
	static pid_t owner;

	/* A child needs a separate identity. */
	if (owner != getpid()) {
		CHECK(gs_open(&handle, gs_path(), GS_OBSERVER) == 0);
		owner = getpid();
	}
	return &handle;
}

/*
 * find locks and advances the state. find returns the slot of a process, or NULL if the process has
 * no slot.
 */
static struct gs_proc *find(struct gs_handle *handle, pid_t pid)
{
	struct gs_proc *proc;
	uint32_t cursor = 0;
	pid_t holder;

	while ((proc = gs_proc_next(handle, &cursor)))
		if (gs_proc_alive(handle, gs_slot(handle, proc), &holder) && holder == pid)
			return proc;
	return NULL;
}

static uint64_t value_of(pid_t pid, uint32_t gpu, size_t offset)
{
	struct gs_handle *handle = observer();
	struct gs_proc *proc;
	uint64_t value = 0;

	gs_lock(handle);
	gs_reap(handle);
	gs_advance(handle, gs_now());
	proc = find(handle, pid);
	if (proc)
		value = *(uint64_t *)((char *)&proc->gpu[gpu] + offset);
	gs_unlock(handle);
	return value;
}

uint64_t physical(pid_t pid, uint32_t gpu)
{
	return value_of(pid, gpu, offsetof(struct gs_proc_gpu, bytes));
}

uint64_t gpu_time(pid_t pid, uint32_t gpu)
{
	return value_of(pid, gpu, offsetof(struct gs_proc_gpu, gpu_time_ns));
}

uint64_t used(uint32_t gpu)
{
	struct gs_handle *handle = observer();
	uint64_t value;

	gs_lock(handle);
	gs_reap(handle);
	value = handle->state->gpus[gpu].used_bytes;
	gs_unlock(handle);
	return value;
}

void sleep_ns(uint64_t ns)
{
	struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

	nanosleep(&ts, NULL);
}
